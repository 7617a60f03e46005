"""The table of faults by kind and judge: its figures, and its page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rich.table import Table as Grid

from benchmarks.faults.case import FAULTY, MENDED, Case

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "coverage" / "faults.json"
"""Where the figures of the page are kept."""
PAGE = FIGURES.with_suffix(".md")
NOTICE = "<!-- Written by `python -m benchmarks.faults`, and by `python -m docs.generate` from faults.json. -->"
WIDTH = 160
OURS = ("check", "verify", "watch")
NAMES = {
    "check": "`check`",
    "verify": "`verify`",
    "watch": "`run --no-wrap`",
    "linter": "transformers' linter",
    "generic": "transformers' generic test",
    "torch": "torch's own checks",
    "losses": "losses compared",
}
"""The judges as the page names them."""
Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Row:
    """One fault: its symptom, and what each judge said of it and of its twin."""

    case: Case
    answers: Answers

    @property
    def shows(self) -> bool:
        """Tell whether the faulty script shows its fault by numbers, and the mended one does not."""
        return self._symptom(FAULTY) is True and self._symptom(MENDED) is False

    def _symptom(self, which: str) -> bool | None:
        shown: bool | None = self.answers[which].get("symptom", {}).get("shown")
        return shown

    def found(self, *judges: str) -> bool:
        """Tell whether one of these judges found the fault."""
        return any(self.answers[FAULTY].get(judge, {}).get("found") for judge in judges)

    def alarmed(self, *judges: str) -> bool:
        """Tell whether one of these judges called the twin faulty."""
        return any(self.answers[MENDED].get(judge, {}).get("found") for judge in judges)

    def named(self, *judges: str) -> bool:
        """Tell whether one of these judges named the cause."""
        said = "\n".join(
            line
            for judge in judges
            if self.answers[FAULTY].get(judge, {}).get("found")
            for line in self.answers[FAULTY][judge]["said"]
        )
        return any(cause.lower() in said.lower() for cause in self.case.cause)

    @property
    def cured(self) -> bool | None:
        """Tell whether the cure took the symptom away; None where there is none, or it was not tried."""
        answer = self.answers[FAULTY].get(self.case.cure)
        return None if answer is None else answer.get("shown") is False


@dataclass(frozen=True, slots=True)
class Table:
    """All faults."""

    rows: Sequence[Row]

    @classmethod
    def of(cls, cases: Sequence[Case], answers: Mapping[str, Answers]) -> Self:
        """Join cases and what was answered about them."""
        return cls([Row(case, answers[case.name]) for case in cases])

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls([Row(Case(**row["case"]), row["answers"]) for row in data["faults"]])

    def to_json(self) -> str:
        """Return the figures of the page as json."""
        rows = [{"case": asdict(row.case), "answers": _without_traces(row.answers)} for row in self.rows]
        return json.dumps({"faults": rows}, indent=1) + "\n"

    def wrong(self) -> list[str]:
        """List what is not as it should be, apart from faults that nobody found."""
        lines = [f"{row.case.name}: does not show as it should: {_numbers(row)}" for row in self.rows if not row.shows]
        lines += [f"{row.case.name}: a judge of ours calls the twin faulty" for row in self.rows if row.alarmed(*OURS)]
        return lines


def write(table: Table) -> None:
    """Write figures and page."""
    FIGURES.write_text(table.to_json(), encoding="utf-8")
    PAGE.write_text(page(table), encoding="utf-8")


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the page as it is made from the figures that are kept."""
    if FIGURES.is_file():
        yield PAGE, page(Table.read(json.loads(FIGURES.read_text(encoding="utf-8"))))


def grid(table: Table) -> Grid:
    """Return a row for each fault: who found it."""
    drawn = Grid(title="faults that people had", title_style="bold")
    for heading in ("fault", "kind", "shows", "cured", *NAMES, "named"):
        drawn.add_column(heading.strip("`"))
    for row in table.rows:
        marks = [_mark(row, judge) for judge in NAMES]
        cured = {None: "", True: "yes", False: "NO"}[row.cured]
        shows = "yes" if row.shows else "NO"
        drawn.add_row(row.case.name, row.case.kind, shows, cured, *marks, "yes" if row.named(*OURS) else "")
    return drawn


def _mark(row: Row, judge: str) -> str:
    answers = row.answers[FAULTY].get(judge), row.answers[MENDED].get(judge)
    if answers[0] is None or answers[1] is None:
        return ""
    crashed = any("crashed" in (answer or {}) for answer in answers)
    found, alarm = row.found(judge), row.alarmed(judge)
    return ("found" if found else "-") + (" ALARM" if alarm else "") + (" crashed" if crashed else "")


def page(table: Table) -> str:
    """Return the page in Markdown."""
    raise NotImplementedError


def _numbers(row: Row) -> str:
    return "; ".join(f"{which}: {row.answers[which].get('symptom')}" for which in (FAULTY, MENDED))


def _without_traces(answers: Answers) -> Answers:
    return {
        which: {what: {k: v for k, v in answer.items() if k != "traceback"} for what, answer in asked.items()}
        for which, asked in answers.items()
    }
