"""The two helpers that carry every case of a rule, `check_noop` and `check_transformed`, and what they need.

A case is a text of one or more files. `# file: models/bar/modeling_bar.py` begins a file; what stands before
the first such line is `models/foo/modeling_foo.py`. The first lines may tell what is to be found there:

    # CKPT003 safe | layer(hidden_states=hidden_states) | `hidden_states` by keyword

names a finding by its code, its applicability, a part of the line it is at and, if wanted, a part of its
message. Safe and unsafe findings must be told completely; information and unknowns only as far as wanted.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.check import check
from ckpt_surgery.static.results import ApplyResult

FOO = "models/foo/modeling_foo.py"
_FILE = re.compile(r"^# file: (\S+)\n", re.M)
_EXPECTED = re.compile(r"# (CKPT\d+) (safe|unsafe|info|unknown)(?: \| ([^|\n]*))?(?: \| ([^\n]*))?\n")
_FAULTS = (Applicability.SAFE, Applicability.UNSAFE)


@dataclass(frozen=True, slots=True)
class Expected:
    """A finding that a case tells: its code, applicability, part of its line, part of its message."""

    code: str
    applicability: str
    line: str
    message: str

    def fits(self, finding: Finding, line: str) -> bool:
        """Whether a finding at a line with this text is the one meant."""
        return (
            (finding.code, finding.applicability.value) == (self.code, self.applicability)
            and self.line in line
            and self.message in finding.message
        )


def files_of(case: str) -> tuple[list[Expected], dict[str, str]]:
    """What a case expects, and its files by path below the tree's top."""
    expected: list[Expected] = []
    while found := _EXPECTED.match(case):
        code, applicability, line, message = (part or "" for part in found.groups())
        expected.append(Expected(code, applicability, line.strip(), message.strip()))
        case = case[found.end() :]
    first, *rest = _FILE.split(case.lstrip("\n"))
    files = dict(zip(rest[::2], rest[1::2], strict=True))
    return expected, {FOO: first, **files} if first.strip() else files


def tree(root: Path, files: dict[str, str] | str) -> Path:
    """Write files below `root` byte for byte; a single text is that of the model foo."""
    for name, text in (files if isinstance(files, dict) else {FOO: files}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return root


def texts(root: Path) -> dict[str, str]:
    """Every Python file below `root`: its path from there and its text."""
    return {path.relative_to(root).as_posix(): path.read_bytes().decode() for path in sorted(root.rglob("*.py"))}


def found(root: Path, code: str = "") -> list[Finding]:
    """What `check` finds, of one rule or of all."""
    return [finding for finding in check([root], jobs=1).findings if finding.code.startswith(code)]


def repair(root: Path, *, unsafe: bool = False, select: tuple[str, ...] = ()) -> ApplyResult:
    """Run `apply` and, again, on what it wrote: nothing may change then, and every file must parse."""
    result = apply([root], unsafe=unsafe, select=select, jobs=1)
    after = texts(root)
    for name, text in after.items():
        ast.parse(text, name)
    again = apply([root], unsafe=unsafe, select=select, jobs=1)
    assert [change.diff for change in again.changes] == [], "a second run changes it again"
    assert texts(root) == after
    return result


def check_noop(root: Path, case: str, *, unsafe: bool = False) -> ApplyResult:
    """`apply` leaves the case as it is, and the findings are those that it tells."""
    return check_transformed(root, case, case, unsafe=unsafe)


def check_transformed(root: Path, before: str, after: str, *, unsafe: bool = False) -> ApplyResult:
    """`apply` makes `after` of `before`: the same text, which parses, settles and has no safe finding left.

    The findings of `before` are those that it tells, and so are those of `after` where it tells any.
    """
    expected, files = files_of(before)
    expected_after, wanted = files_of(after)
    tree(root, files)
    result = repair(root, unsafe=unsafe)
    assert result.problems == ()
    assert result.notes == ()
    compare(list(result.found), expected, files, root)
    made = texts(root)
    assert made.keys() == wanted.keys()
    for name, text in wanted.items():
        assert made[name] == text
    left = found(root)
    assert [one.message for one in left if one.applicability is Applicability.SAFE] == []
    if expected_after and before != after:
        compare(left, expected_after, wanted, root)
    return result


def compare(findings: list[Finding], expected: list[Expected], files: dict[str, str], root: Path) -> None:
    """Each expected finding is there, and no fault is there that was not expected."""
    waiting = list(findings)
    for one in expected:
        fitting = [finding for finding in waiting if one.fits(finding, _line(finding, files, root))]
        assert fitting, f"{one} is not among\n{_shown(waiting, files, root)}"
        waiting.remove(fitting[0])
    faults = [finding for finding in waiting if finding.applicability in _FAULTS]
    assert not faults, f"not expected:\n{_shown(faults, files, root)}"


def _shown(findings: list[Finding], files: dict[str, str], root: Path) -> str:
    lines = [
        f"# {one.code} {one.applicability.value} | {_line(one, files, root).strip()} | {one.message}"
        for one in findings
    ]
    return "\n".join(lines)


def _line(finding: Finding, files: dict[str, str], root: Path) -> str:
    return files[Path(finding.path).relative_to(root).as_posix()].split("\n")[finding.line - 1]
