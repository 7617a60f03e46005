"""Ask git which lines were changed since a revision."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.errors import OptionError

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SETTINGS = ("-c", "core.quotePath=false", "-c", "core.fsmonitor=false")
_DIFF = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "-U0", "-M", "--src-prefix=a/", "--dst-prefix=b/")


@dataclass(frozen=True, slots=True)
class ChangedLines:
    """The changed lines of files, by real path; None for a new file."""

    by_file: Mapping[str, Sequence[range] | None]

    @classmethod
    def since(cls, places: Sequence[str | Path], revision: str) -> ChangedLines:
        """Return what was changed in the repositories of some files and folders since a revision, committed or not.

        Raises:
            OptionError: a place is in no git repository, or that has no such revision; or git is not installed.
        """
        folders = dict.fromkeys(p if os.path.isdir(p) else os.path.dirname(p) or os.curdir for p in places)
        tops: dict[str, None] = {}
        for folder in filter(os.path.isdir, folders):
            top = _git(folder, "rev-parse", "--show-toplevel")
            if top is None:
                raise OptionError(f"--since: {folder} is in no git repository: nothing says what was changed there")
            tops[top.removesuffix("\n")] = None
        by_file: dict[str, Sequence[range] | None] = {}
        for top in tops:
            asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
            commit = _git(top, *asked)
            if not commit:
                raise OptionError(
                    f"--since: the repository {top} has no revision {revision!r}: give a commit, branch or tag"
                )
            for name, lines in _changes(_git(top, *_DIFF, commit.strip(), "--") or "").items():
                by_file[os.path.realpath(os.path.join(top, name))] = lines
            for name in (_git(top, "ls-files", "-z", "--others", "--exclude-standard") or "").split("\0"):
                by_file[os.path.realpath(os.path.join(top, name))] = None
        return cls(by_file)

    def cover(self, finding: Finding) -> bool:
        """Tell whether a line of the finding, from the first of its statement on, was changed."""
        ranges = self.by_file.get(os.path.realpath(finding.path), ())
        first = min(finding.first_line or finding.line, finding.line)
        return ranges is None or any(lines.start <= finding.line and first < lines.stop for lines in ranges)


def _git(folder: str | Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if it fails. Variables that name another repository are dropped."""
    kept = {name: value for name, value in os.environ.items() if name[:4] != "GIT_" or name.startswith("GIT_CONFIG")}
    try:
        done = subprocess.run(
            ["git", "-C", os.fspath(folder), *_SETTINGS, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**kept, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            check=False,
        )
    except OSError as error:
        raise OptionError(f"--since: git cannot be run ({error.strerror or error}): install it") from None
    return None if done.returncode else os.fsdecode(done.stdout)


def _changes(diff: str) -> dict[str, list[range]]:
    """Return the lines that a diff without context adds, by path."""
    changes: dict[str, list[range]] = defaultdict(list)
    name = ""
    lines = iter(diff.split("\n"))
    for line in lines:
        if line.startswith("+++ "):
            path = line[4:].rstrip("\t")
            name = (ast.literal_eval(path) if path.startswith('"') else path).removeprefix("b/")
        elif match := _HUNK.match(line):
            removed, start, added = (1 if group is None else int(group) for group in match.groups())
            if added:
                changes[name].append(range(start, start + added))
            left = removed + added
            while left:  # a changed line may look like a header of the diff
                left -= not next(lines).startswith("\\")
    return changes
