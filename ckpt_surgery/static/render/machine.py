"""Results out, for machines: JSON, GitHub workflow commands and SARIF 2.1.0, each as one string.

Nothing here wraps, colours or shortens, and nothing goes through a pretty-printer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.declaration import Subject
from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.static.render.text import Report, RuleText, display_path, statistics
from ckpt_surgery.static.results import Problem

JSON_SCHEMA_VERSION = 1
"""Raised when a key of the JSON report changes its meaning or goes; new keys leave it as it is."""

_SCRIPT_CODES = frozenset(rule.code for rule in RULES if rule.subject is Subject.SCRIPT)
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_SARIF_LEVELS = {
    Applicability.SAFE: "error",
    Applicability.UNSAFE: "error",
    Applicability.INFO: "note",
    Applicability.UNKNOWN: "warning",
}
_GITHUB_LEVELS = {**_SARIF_LEVELS, Applicability.INFO: "notice"}


def to_json(report: Report, version: str) -> str:
    """The report as one JSON object: findings with their edits, problems and counts by rule."""
    document = {
        "schema_version": JSON_SCHEMA_VERSION,
        "tool": {"name": "ckpt_surgery", "version": version},
        "files": report.files,
        "seconds": round(report.seconds, 3),
        "suppressed": report.suppressed,
        "hidden": {kind.value: count for kind, count in report.hidden.items()},
        "findings": [_json_finding(finding) for finding in report.shown],
        "problems": [{"path": problem.path, "message": problem.message} for problem in report.problems],
        "statistics": [
            {
                "code": rule.code,
                "name": rule.name,
                "summary": rule.summary,
                "count": rule.count,
                "by_applicability": dict(rule.by_applicability),
            }
            for rule in statistics(report.shown, report.rules)
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def to_github(report: Report) -> str:
    """One workflow command for each finding and problem, as GitHub Actions reads them from a step's output."""
    lines = []
    for f in report.shown:
        place = {"file": display_path(f.path), "line": f.line, "col": f.column, "title": f.code}
        subject = f"{f.class_name}: " if f.class_name else ""
        lines.append(_github_command(_GITHUB_LEVELS[f.applicability], place, f"{subject}{f.message}"))
    for problem in report.problems:
        place = {"file": display_path(problem.path), "title": "ckpt_surgery"}
        lines.append(_github_command("error", place, str(problem)))
    return "".join(f"{line}\n" for line in lines)


def to_sarif(report: Report, version: str) -> str:
    """The report as a SARIF 2.1.0 log with one run; problems become notifications of its invocation."""
    indices = {rule.code: index for index, rule in enumerate(report.rules)}
    run = {
        "tool": {
            "driver": {
                "name": "ckpt_surgery",
                "version": version,
                "rules": [_sarif_rule(rule) for rule in report.rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": f"{Path.cwd().as_uri().rstrip('/')}/"}},
        "invocations": [
            {
                "executionSuccessful": not report.problems,
                "toolExecutionNotifications": [_sarif_notification(problem) for problem in report.problems],
            }
        ],
        "results": [_sarif_result(finding, indices.get(finding.code, -1)) for finding in report.shown],
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _json_finding(finding: Finding) -> dict[str, object]:
    return {
        "code": finding.code,
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "class_name": finding.class_name,
        "message": finding.message,
        "applicability": finding.applicability.value,
        "family": finding.family,
        "first_line": finding.first_line,
        "edits": [
            {"path": edit.path, "start": edit.start, "end": edit.end, "text": edit.text} for edit in finding.edits
        ],
    }


def _github_command(level: str, properties: dict[str, object], message: str) -> str:
    given = ",".join(f"{key}={_github_property(str(value))}" for key, value in properties.items())
    return f"::{level} {given}::{_github_data(message)}"


def _github_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _github_property(text: str) -> str:
    return _github_data(text).replace(":", "%3A").replace(",", "%2C")


def _sarif_rule(rule: RuleText) -> dict[str, object]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.documentation, "markdown": rule.documentation},
    }


def _sarif_result(finding: Finding, rule_index: int) -> dict[str, object]:
    location: dict[str, object] = {
        "physicalLocation": {
            "artifactLocation": _sarif_artifact(finding.path),
            "region": {"startLine": finding.line, "startColumn": finding.column},
        }
    }
    if finding.class_name:
        kind = "function" if finding.code in _SCRIPT_CODES else "type"
        location["logicalLocations"] = [{"name": finding.class_name, "kind": kind}]
    result: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _SARIF_LEVELS[finding.applicability],
        "message": {"text": finding.message},
        "locations": [location],
        "properties": {"applicability": finding.applicability.value, "family": finding.family},
    }
    if finding.edits:
        result["fixes"] = [_sarif_fix(finding.edits)]
    return result


def _sarif_fix(edits: Sequence[Edit]) -> dict[str, object]:
    by_path: dict[str, list[Edit]] = {}
    for edit in edits:
        by_path.setdefault(edit.path, []).append(edit)
    return {
        "description": {"text": "Repair it as `ckpt_surgery apply` does."},
        "artifactChanges": [
            {
                "artifactLocation": _sarif_artifact(path),
                "replacements": [
                    {
                        "deletedRegion": {"charOffset": edit.start, "charLength": edit.end - edit.start},
                        "insertedContent": {"text": edit.text},
                    }
                    for edit in sorted(of_file)
                ],
            }
            for path, of_file in by_path.items()
        ],
    }


def _sarif_notification(problem: Problem) -> dict[str, object]:
    return {
        "level": "error",
        "message": {"text": str(problem)},
        "locations": [{"physicalLocation": {"artifactLocation": _sarif_artifact(problem.path)}}],
    }


def _sarif_artifact(path: str) -> dict[str, object]:
    """A URI relative to the working folder where the file lies under it, so that the log can travel."""
    shown = display_path(path)
    if os.path.isabs(shown) or shown.startswith(".."):
        return {"uri": f"file://{quote(os.fsencode(Path(os.path.abspath(path)).as_posix()))}"}
    return {"uri": quote(os.fsencode(Path(shown).as_posix())), "uriBaseId": "SRCROOT"}
