"""The baseline: a file beside the code with findings that are known and not reported again."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.errors import OptionError
from ckpt_surgery.static.results import CheckResult, Note
from ckpt_surgery.text import plural

_NUMBER = re.compile(r"\d+")
_VERSION = 1


class Known(NamedTuple):
    """What identifies a finding, even if it moves within its file: numbers in its message do not count.

    `path` is relative to the folder of the baseline, with slashes.
    """

    path: str
    code: str
    class_name: str
    message: str


def without_known(
    result: CheckResult, file: Path, *, places: Sequence[str | Path], codes: Collection[str], update: bool = False
) -> CheckResult:
    """Return the result without the findings in a baseline, and write the baseline if there is none yet.

    Of identical findings, as many are left out as the baseline has. A note says how many are left out in all, and how
    many in the baseline are gone.

    Args:
        result: the result of a check.
        file: the baseline.
        places: the files and folders that were checked.
        codes: the rules that ran.
        update: whether to rewrite the file; its findings of other places and codes stay.

    Raises:
        OptionError: the file cannot be read or written, or is not a baseline.
    """
    baseline = _Baseline(file)
    keyed = [(finding, baseline.known(finding)) for finding in result.findings]
    now = Counter(known for _, known in keyed)
    new = not os.path.lexists(file)
    before = Counter[Known]() if new else baseline.read()
    unread = {baseline.relative(problem.path) for problem in result.problems}
    checked = [os.path.realpath(place) for place in places]
    elsewhere = {
        known: count
        for known, count in before.items()
        if known.code not in codes or known.path in unread or (checked and not baseline.lies_in(known, checked))
    }
    if new or update:
        baseline.write(now | Counter(elsewhere))
        note = f"written with {plural(now.total(), 'finding')}: from the next run on, only others are reported"
        return replace(result, findings=(), notes=(*result.notes, Note(str(file), note)))
    left = before.copy()
    findings: list[Finding] = []
    for finding, known in keyed:
        if left[known]:
            left[known] -= 1
        else:
            findings.append(finding)
    gone = sum(count for known, count in left.items() if known not in elsewhere)
    counts = (
        [f"{plural(hidden, 'finding')} of this baseline not shown"] if (hidden := len(keyed) - len(findings)) else []
    )
    counts += [f"{gone} of its findings gone: rewrite it with --update-baseline"] if gone else []
    notes = (Note(str(file), "; ".join(counts)),) if counts else ()
    return replace(result, findings=tuple(findings), notes=(*result.notes, *notes))


@dataclass(frozen=True, slots=True)
class _Baseline:
    """A baseline file. Paths in it are relative to its folder."""

    file: Path

    @property
    def folder(self) -> str:
        return os.path.realpath(os.path.dirname(self.file) or os.curdir)

    def known(self, finding: Finding) -> Known:
        message = _NUMBER.sub("#", finding.message)
        return Known(self.relative(finding.path), finding.code, finding.class_name, message)

    def relative(self, path: str | Path) -> str:
        path = os.path.realpath(path)
        try:
            return Path(os.path.relpath(path, self.folder)).as_posix()
        except ValueError:  # another drive
            return Path(path).as_posix()

    def lies_in(self, known: Known, places: Collection[str]) -> bool:
        """Tell whether a finding lies in one of these files and folders."""
        path = os.path.normpath(os.path.join(self.folder, known.path))
        return path in places or any(path.startswith(os.path.join(place, "")) for place in places)

    def read(self) -> Counter[Known]:
        try:
            document = json.loads(self.file.read_text(encoding="utf-8"))
            if document["version"] != _VERSION:
                raise ValueError
            return Counter(
                {Known(*(entry[key] for key in Known._fields)): int(entry["count"]) for entry in document["findings"]}
            )
        except OSError as error:
            raise OptionError(f"the baseline {self.file} cannot be read: {error.strerror or error}") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            why = "is not a baseline: name another file, or remove it and one is written"
            raise OptionError(f"{self.file} {why}") from None

    def write(self, findings: Counter[Known]) -> None:
        entries = [{**known._asdict(), "count": count} for known, count in sorted(findings.items())]
        document = json.dumps({"version": _VERSION, "findings": entries}, indent=1) + "\n"
        try:
            self.file.write_text(document, encoding="utf-8")
        except OSError as error:
            raise OptionError(f"the baseline {self.file} cannot be written: {error.strerror or error}") from None
