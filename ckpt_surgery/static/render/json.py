"""The report as one JSON object. Nothing here wraps, colours or shortens."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.static.edits import edits_of
from ckpt_surgery.static.render.report import CheckReport, statistics

JSON_SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or is removed; a new key leaves it as it is."""
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
            for rule, counts in statistics(report)
        ],
    }
    return json.dumps(document, indent=2) + "\n"
