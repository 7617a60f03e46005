"""The report as workflow commands of GitHub Actions, one for each finding, problem and note."""

from __future__ import annotations

from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.static.render.report import LEVELS, CheckReport, display_path, sentence

_LEVELS = {**LEVELS, Applicability.INFO: "notice"}


def to_github(report: CheckReport) -> str:
    """Return a workflow command for each finding, problem and note, as GitHub Actions reads them from a step."""
    commands = [
        _command(_LEVELS[f.applicability], f.path, sentence(f), line=f.line, col=f.column, title=f.code)
        for f in report.shown
    ]
    commands += [_command("error", p.path, str(p), title="ckpt_surgery") for p in report.result.problems]
    commands += [_command("notice", note.path, str(note), title="ckpt_surgery") for note in report.result.notes]
    return "".join(commands)


def _command(level: str, path: str, message: str, **properties: object) -> str:
    place = {"file": display_path(path), **properties}
    pairs = (f"{key}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}" for key, value in place.items())
    return f"::{level} {','.join(pairs)}::{_escaped(message)}\n"


def _escaped(value: object) -> str:
    return str(value).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
