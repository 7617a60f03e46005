"""The report as workflow commands of GitHub Actions, one for each finding and problem."""

from __future__ import annotations

from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.static.render.report import CheckReport, display_path

_LEVELS = {
    Applicability.SAFE: "error",
    Applicability.UNSAFE: "error",
    Applicability.INFO: "notice",
    Applicability.UNKNOWN: "warning",
}


def to_github(report: CheckReport) -> str:
    """One workflow command for each finding and problem, as GitHub Actions reads them from a step's output."""
    lines = []
    for finding in report.shown:
        place = {
            "file": display_path(finding.path),
            "line": finding.line,
            "col": finding.column,
            "title": finding.code,
        }
        subject = f"{finding.class_name}: " if finding.class_name else ""
        lines.append(_command(_LEVELS[finding.applicability], place, f"{subject}{finding.message}"))
    for problem in report.problems:
        place = {"file": display_path(problem.path), "title": "ckpt_surgery"}
        lines.append(_command("error", place, str(problem)))
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, properties: dict[str, object], message: str) -> str:
    pairs = ",".join(f"{key}={_escaped_property(str(value))}" for key, value in properties.items())
    return f"::{level} {pairs}::{_escaped_data(message)}"


def _escaped_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped_data(text).replace(":", "%3A").replace(",", "%2C")
