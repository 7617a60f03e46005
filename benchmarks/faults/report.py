"""The table of faults by kind and judge: its figures, and its page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.faults.case import FAULTY, KINDS, MENDED, TWINS, Case
from benchmarks.survey import ROOT, Page, written_by
from ckpt_surgery.text import markdown_table, plural, prose

README = ROOT / "README.md"
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
_SUMMARY = re.compile(r"(<!-- faults: .* -->)\n.*?(<!-- end of faults -->)", re.DOTALL)
_CURED = {None: "", True: "yes", False: "no"}
_FIRST = "in the first run, before anything was mended after it, they found 30 of 35, and named 20"
_WHAT = """\
Each is a short script of ours with the fault, and the same mended: a small model that trains on the processor. Every
faulty script shows its fault by numbers, without any tool, and no mended one does. A judge finds a fault if it says so
of the faulty script; it is charged with a false alarm if it says so of the mended one. *Cured* counts the faults after
which `wrap_blocks`, or `apply --unsafe`, made the numbers right, where either can be expected to.
`python -m benchmarks.faults` makes this page."""
_JUDGES = """\
- `check`, `verify` and `run --no-wrap` are ours, with their defaults; `verify` gets the model, the batch and the mode
  of the training.
- *transformers' linter* is transformers-mlinter 0.1.5; its rules TRF013, TRF034 and TRF041 count. It reads the script
  as a `modeling_*.py`, the only files for which it was made.
- *transformers' generic test* is the method of the checkpointing test in the suite of 5.23.0, written anew: every
  parameter that has a gradient without checkpointing has to have one with it.
- *torch's own checks* are `determinism_check`, the debug mode of `torch.utils.checkpoint` and anomaly detection: an
  error, or a warning on checkpointing, is a find.
- *losses compared* is what most people do: twenty steps with and without, and a difference of 1 % is seen. An error
  that ends the training is seen too.

TrainCheck 0.2.0 has no column. Tried by hand, as its README says, on five of the faults (torch 2.13, one CPU), it
took about 45 seconds for each and inferred 37 invariants for two. The only one that the faulty script violated, on
imports, the mended one violates too. On two its inference stopped, on one its check did. Our scripts train through a
loop that they import, which may not be its best setting."""
Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What was answered about a case, by twin and question."""


@dataclass(frozen=True, slots=True)
class Row:
    """A fault and its results.

    Attributes:
        case: the fault.
        shows: whether the faulty script shows it by numbers, and the mended one does not.
        cured: whether the cure took the symptom away; None where there is none, or it was not tried.
        found: the judges that said so of the faulty script.
        alarms: the judges that said so of the mended one.
        named: the judges that named the cause.
        crashed: the questions that ended in an error of a judge, with it.
        seconds: the mean wall time of each judge for a script.
        numbers: the symptom of both.
    """

    case: Case
    shows: bool
    cured: bool | None
    found: Sequence[str]
    alarms: Sequence[str]
    named: Sequence[str]
    crashed: Mapping[str, str]
    seconds: Mapping[str, float]
    numbers: Mapping[str, str]

    @classmethod
    def of(cls, case: Case, answers: Answers) -> Self:
        """Read what was answered about a case."""
        faulty, mended = answers[FAULTY], answers[MENDED]
        judges = [judge for judge in NAMES if judge in faulty]
        remarks = {judge: [len(each[judge].get("remarks", ())) for each in (faulty, mended)] for judge in judges}
        found = [judge for judge in judges if faulty[judge].get("found") or remarks[judge][0] > remarks[judge][1]]
        said = {judge: "\n".join(faulty[judge].get("said", ())).lower() for judge in judges}
        symptoms = {which: answers[which]["symptom"] for which in TWINS}
        cure = faulty.get(case.cure)
        return cls(
            case,
            shows=symptoms[FAULTY].get("shown") is True and symptoms[MENDED].get("shown") is False,
            cured=None if cure is None else cure.get("shown") is False,
            found=found,
            alarms=[judge for judge in judges if mended[judge].get("found")],
            named=[judge for judge in found if any(cause.lower() in said[judge] for cause in case.cause)],
            crashed={
                f"{what} ({which})": answer["crashed"]
                for which in TWINS
                for what, answer in answers[which].items()
                if "crashed" in answer
            },
            seconds={judge: round((faulty[judge]["seconds"] + mended[judge]["seconds"]) / 2, 2) for judge in judges},
            numbers={
                which: f"{each.get('quantity')}: {each.get('measured')}, right {each.get('right')}"
                for which, each in symptoms.items()
            },
        )

    def found_by(self, judges: Iterable[str]) -> bool:
        """Tell whether one of these judges found the fault."""
        return not set(judges).isdisjoint(self.found)

    def named_by_ours(self) -> bool:
        """Tell whether one of ours named the cause."""
        return not set(OURS).isdisjoint(self.named)


@dataclass(frozen=True, slots=True)
class Table:
    """The table of all faults."""

    rows: Sequence[Row]

    def count(self, holds: Callable[[Row], object]) -> int:
        """Count the faults of which something holds."""
        return sum(bool(holds(row)) for row in self.rows)

    def found(self, judges: Sequence[str]) -> int:
        """Count the faults that one of these judges found."""
        return self.count(lambda row: row.found_by(judges))

    def alarms(self, judges: Sequence[str]) -> int:
        """Count the twins that one of these judges called faulty."""
        return self.count(lambda row: not set(judges).isdisjoint(row.alarms))

    def seconds(self, judge: str) -> float:
        """Return the mean wall time of a judge for one script."""
        return sum(row.seconds.get(judge, 0.0) for row in self.rows) / max(len(self.rows), 1)

    def lines(self) -> Iterator[str]:
        """Yield a line for each fault: its numbers, who found it, and who named its cause."""
        for row in self.rows:
            found = f"; found by {', '.join(row.found) or 'nobody'}; named by {', '.join(row.named) or 'nobody'}"
            yield f"{row.case.name}: {row.numbers[FAULTY]}; mended {row.numbers[MENDED]}{found if row.seconds else ''}"

    def wrong(self) -> list[str]:
        """List what is not as it should be, apart from faults that nobody found."""
        lines = [f"{row.case.name}: does not show as it should: {row.numbers}" for row in self.rows if not row.shows]
        lines += [f"{row.case.name}: a false alarm of {', '.join(row.alarms)}" for row in self.rows if row.alarms]
        return lines + [f"{row.case.name}: {what}: {why}" for row in self.rows for what, why in row.crashed.items()]


def table_of(figures: Mapping[str, Any]) -> Table:
    """Return the table of the figures that are kept."""
    return Table([Row(**{**row, "case": Case(**row["case"])}) for row in figures["faults"]])


def figures_of(table: Table) -> Mapping[str, Any]:
    """Return what is kept of a table."""
    return {"faults": [asdict(row) for row in table.rows]}


def write_summary(table: Table, file: Path = README) -> None:
    """Write the table of the README between its two comments."""
    text = file.read_text(encoding="utf-8")
    file.write_text(_SUMMARY.sub(lambda found: f"{found[1]}\n{summary(table)}\n{found[2]}", text), encoding="utf-8")


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page."""
    table = table_of(figures)
    projects = len({row.case.project for row in table.rows})
    held, seen = (Table([row for row in table.rows if row.case.held_out is out]) for out in (True, False))
    yield "# CKPT-Bench: faults that people had, and who finds them"
    yield (
        f"{plural(len(table.rows), 'fault')} of activation checkpointing, from the public histories of "
        f"{plural(projects, 'project')}.\n{_WHAT}"
    )
    yield "## By kind"
    yield _by_kind(table)
    yield (
        f"Of the {len(seen.rows)} that were rebuilt with the judges at hand, ours find {seen.found(OURS)} and name "
        f"the cause of {seen.count(Row.named_by_ours)}. Of {len(held.rows)} held out, rebuilt from the reports by "
        f"someone who knew neither rules nor judges, they find {held.found(OURS)}, and name the cause of "
        f"{held.count(Row.named_by_ours)}; {_FIRST}."
    )
    yield from ("## The judges", _JUDGES, "## Every fault", _every(table), "## Missed by ours")
    missed = [row.case for row in table.rows if not row.found_by(OURS)]
    yield "\n".join(f"- [{case.name}]({case.source}): {case.summary}" for case in missed) or "None."


def summary(table: Table) -> str:
    """Return the table of the README: what each judge found, and its false alarms."""
    judges = {"all three of ours": OURS, **{name: (judge,) for judge, name in NAMES.items()}}
    rows = [[name, str(table.found(each)), str(table.alarms(each))] for name, each in judges.items()]
    return markdown_table(["who", f"of {len(table.rows)} faults", "false alarms"], rows)


def _by_kind(table: Table) -> str:
    judges = [OURS, *((judge,) for judge in NAMES)]
    rows = []
    for kind in (*KINDS, ""):
        part = Table([row for row in table.rows if kind in ("", row.case.kind)])
        tried = part.count(lambda row: row.cured is not None)
        cured = f"{part.count(lambda row: row.cured)} of {tried}" if tried else ""
        if part.rows:
            rows.append([kind or "**all**", str(len(part.rows)), *(str(part.found(each)) for each in judges), cured])
    rows.append(["false alarms", "", *(str(table.alarms(each)) for each in judges), ""])
    rows.append(["seconds for each", "", *(f"{sum(map(table.seconds, each)):.2g}" for each in judges), ""])
    return markdown_table(["kind", "faults", "all of ours", *NAMES.values(), "cured"], rows)


def _every(table: Table) -> str:
    rows = [
        [
            f"[{row.case.name}]({row.case.source})",
            row.case.kind,
            prose(row.case.saw),
            ", ".join(NAMES[judge] for judge in row.found) or "nobody",
            "yes" if row.named_by_ours() else "no",
            _CURED[row.cured],
        ]
        for row in table.rows
    ]
    return markdown_table(["fault", "kind", "what a user saw", "found by", "cause named", "cured"], rows)


PAGE = Page("faults", written_by("python -m benchmarks.faults", "faults"), sections)
