"""The report as one JSON object. Nothing here wraps, colours or shortens."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.static.edits import Edit, edits_of
from ckpt_surgery.static.render.report import CheckReport, statistics

JSON_SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or is removed; a new key leaves it as it is."""


def to_json(report: CheckReport, version: str) -> str:
    """The report as one JSON object: findings with their edits, problems and counts by rule."""
    edits = edits_of(report.shown)
    document = {
        "schema_version": JSON_SCHEMA_VERSION,
        "tool": {"name": "ckpt_surgery", "version": version},
        "files": report.files,
        "seconds": round(report.seconds, 3),
        "suppressed": report.suppressed,
        "hidden": {kind.value: count for kind, count in report.hidden.items()},
        "findings": [_json_finding(finding, edits[finding]) for finding in report.shown],
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


def _json_finding(finding: Finding, edits: Iterable[Edit]) -> dict[str, object]:
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
        "edits": [{"path": edit.path, "start": edit.start, "end": edit.end, "text": edit.text} for edit in edits],
    }
