"""The report for machines: SARIF 2.1.0, one JSON object, or workflow commands. Nothing here wraps or shortens."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from urllib.parse import quote

from ckpt_surgery.codemods import Rule
from ckpt_surgery.codemods.finding import Applicability, Finding, Subject
from ckpt_surgery.static.render.report import LEVELS, CheckReport, display_path, sentence
from ckpt_surgery.static.results import Note, Problem
from ckpt_surgery.static.text_edits import Edit, edits_of

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


def to_sarif(report: CheckReport, version: str) -> str:
    """Return the report as a SARIF 2.1.0 log with one run; problems and notes are its notifications."""
    edits, problems = edits_of(report.shown), report.result.problems
    remarks: Sequence[Problem | Note] = (*problems, *report.result.notes)
    notifications = [
        {
            "level": "error" if isinstance(remark, Problem) else "note",
            "message": {"text": str(remark)},
            "locations": [{"physicalLocation": {"artifactLocation": _artifact(remark.path)}}],
        }
        for remark in remarks
    ]
    rules = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "help": {"text": rule.documentation, "markdown": rule.documentation},
        }
        for rule in report.rules
    ]
    run = {
        "tool": {"driver": {"name": "ckpt_surgery", "version": version, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": f"{Path.cwd().as_uri().rstrip('/')}/"}},
        "invocations": [{"executionSuccessful": not problems, "toolExecutionNotifications": notifications}],
        "results": [_result(finding, edits[finding], report.rules) for finding in report.shown],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(finding: Finding, edits: Sequence[Edit], rules: Sequence[Rule]) -> dict[str, object]:
    index, rule = next(((i, rule) for i, rule in enumerate(rules) if rule.code == finding.code), (-1, None))
    kind = "function" if rule and rule.subject is Subject.SCRIPT else "type"
    subject = {"logicalLocations": [{"name": finding.class_name, "kind": kind}]} if finding.class_name else {}
    region = {"startLine": finding.line, "startColumn": finding.column}
    place = {"artifactLocation": _artifact(finding.path), "region": region}
    replacements: dict[str, list[object]] = {edit.path: [] for edit in edits}
    for edit in sorted(edits):
        deleted = {"charOffset": edit.start, "charLength": edit.end - edit.start}
        replacements[edit.path].append({"deletedRegion": deleted, "insertedContent": {"text": edit.text}})
    changes = [{"artifactLocation": _artifact(path), "replacements": made} for path, made in replacements.items()]
    fix = {"description": {"text": "Repair it as `ckpt_surgery apply` does."}, "artifactChanges": changes}
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.applicability],
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": place, **subject}],
        "properties": {"applicability": finding.applicability, "family": finding.family},
        **({"fixes": [fix]} if edits else {}),
    }


def _artifact(path: str) -> dict[str, object]:
    """Return a URI, relative for a file under the working folder, so that the log can be moved."""
    shown = display_path(path)
    if os.path.isabs(shown) or shown.startswith(".."):
        return {"uri": f"file://{quote(os.fsencode(Path(os.path.abspath(path)).as_posix()))}"}
    return {"uri": quote(os.fsencode(Path(shown).as_posix())), "uriBaseId": "SRCROOT"}


JSON_SCHEMA_VERSION = 1
"""It goes up if a key changes its meaning or is removed, not if one is added."""
_FINDING = [field.name for field in fields(Finding) if field.name != "repairs"]
_RULE = ("code", "name", "summary")


def to_json(report: CheckReport, version: str) -> str:
    """Return the report as one JSON object: findings with their edits, problems, notes and counts by rule."""
    edits, result = edits_of(report.shown), report.result
    document = {
        "schema_version": JSON_SCHEMA_VERSION,
        "tool": {"name": "ckpt_surgery", "version": version},
        "files": result.files,
        "seconds": round(result.seconds, 3),
        "suppressed": result.suppressed,
        "hidden": report.hidden,
        "findings": [
            {**{name: getattr(finding, name) for name in _FINDING}, "edits": [*map(asdict, edits[finding])]}
            for finding in report.shown
        ],
        "problems": [*map(asdict, result.problems)],
        "notes": [*map(asdict, result.notes)],
        "statistics": [
            {**{name: getattr(rule, name) for name in _RULE}, "count": counts.total(), "by_applicability": counts}
            for rule, counts in report.statistics
        ],
    }
    return json.dumps(document, indent=2) + "\n"


_GITHUB_LEVELS = {**LEVELS, Applicability.INFO: "notice"}


def to_github(report: CheckReport) -> str:
    """Return a workflow command for each finding, problem and note, as GitHub Actions reads them from a step."""
    commands = [
        _command(_GITHUB_LEVELS[f.applicability], f.path, sentence(f), line=f.line, col=f.column, title=f.code)
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
