"""Fakes of the library behind the command line, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckpt_surgery.cli.main import main
from ckpt_surgery.codemods.finding import Applicability, Finding, Subject
from ckpt_surgery.codemods.repair import Definition, MakeLayer
from ckpt_surgery.static.results import ApplyResult, CheckResult, FileChange, Problem


@dataclass(frozen=True)
class StandInRule:
    code: str
    name: str
    summary: str = "One line."
    documentation: str = "What it does\n\nIt finds."
    subject: Subject = Subject.MODEL


RULES = (
    StandInRule("CKPT001", "plain_block"),
    StandInRule("CKPT003", "keyword_gradient"),
    StandInRule("CKPT101", "ddp_loss"),
)


CODES = tuple(rule.code for rule in RULES)


def finding(kind: Applicability = Applicability.SAFE, code: str = "CKPT003", line: int = 3) -> Finding:
    repair = MakeLayer("models/m.py", None, Definition("Block"))
    return Finding(code, "models/m.py", line, 5, "Block", "is wrong", kind, "m", (repair,))


INFO, UNKNOWN = finding(Applicability.INFO, line=7), finding(Applicability.UNKNOWN, line=9)


PROBLEM = Problem("models/broken.py", "does not parse")


@dataclass
class StandIn:
    """A fake of a library function: the calls it got, and what it answers or raises."""

    answer: Any = None
    error: BaseException | None = None
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, paths: Any = None, **options: Any) -> Any:
        self.calls.append((paths, options))
        if self.error is not None:
            raise self.error
        return self.answer

    @property
    def options(self) -> dict[str, Any]:
        return self.calls[-1][1]


def checked(*findings: Finding, problems: tuple[Problem, ...] = (), files: int = 4) -> CheckResult:
    return CheckResult(findings, problems, files, 0, 0.5)


def applied(changes: bool = True, left: tuple[Finding, ...] = (), written: bool = True, **other: Any) -> ApplyResult:
    change = FileChange("models/m.py", "a\n", "b\n", ("CKPT003",))
    values = {"findings": (finding(),), "problems": (), "notes": (), "files": 4, "seconds": 0.5, **other}
    return ApplyResult(changes=(change,) if changes else (), left=left, written=written, **values)


def run(arguments: str) -> int:
    return main(arguments.split())


def configure(text: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.ckpt_surgery]\n{text}\n")
