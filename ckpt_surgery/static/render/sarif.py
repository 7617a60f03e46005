"""The report as a SARIF 2.1.0 log, for code scanning."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ckpt_surgery.codemods import Rule
from ckpt_surgery.codemods.finding import Finding, Subject
from ckpt_surgery.static.edits import Edit, edits_of
from ckpt_surgery.static.render.report import LEVELS, CheckReport, display_path
from ckpt_surgery.static.results import Note, Problem

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


def to_sarif(report: CheckReport, version: str) -> str:
    """Return the report as a SARIF 2.1.0 log with one run; problems and notes are its notifications."""
    edits, problems = edits_of(report.shown), report.result.problems
    notifications = [*map(_notification, problems), *map(_notification, report.result.notes)]
    run = {
        "tool": {"driver": {"name": "ckpt_surgery", "version": version, "rules": [*map(_rule, report.rules)]}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": f"{Path.cwd().as_uri().rstrip('/')}/"}},
        "invocations": [{"executionSuccessful": not problems, "toolExecutionNotifications": notifications}],
        "results": [_result(finding, edits[finding], report.rules) for finding in report.shown],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.documentation, "markdown": rule.documentation},
    }


def _result(finding: Finding, edits: Sequence[Edit], rules: Sequence[Rule]) -> dict[str, object]:
    index, rule = next(((i, rule) for i, rule in enumerate(rules) if rule.code == finding.code), (-1, None))
    kind = "function" if rule and rule.subject is Subject.SCRIPT else "type"
    subject = {"logicalLocations": [{"name": finding.class_name, "kind": kind}]} if finding.class_name else {}
    region = {"startLine": finding.line, "startColumn": finding.column}
    place = {"artifactLocation": _artifact(finding.path), "region": region}
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.applicability],
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": place, **subject}],
        "properties": {"applicability": finding.applicability, "family": finding.family},
        **({"fixes": [_fix(edits)]} if edits else {}),
    }


def _fix(edits: Sequence[Edit]) -> dict[str, object]:
    replacements: dict[str, list[object]] = defaultdict(list)
    for edit in sorted(edits):
        deleted = {"charOffset": edit.start, "charLength": edit.end - edit.start}
        replacements[edit.path].append({"deletedRegion": deleted, "insertedContent": {"text": edit.text}})
    paths = dict.fromkeys(edit.path for edit in edits)
    changes = [{"artifactLocation": _artifact(path), "replacements": replacements[path]} for path in paths]
    return {"description": {"text": "Repair it as `ckpt_surgery apply` does."}, "artifactChanges": changes}


def _notification(said: Problem | Note) -> dict[str, object]:
    location = {"physicalLocation": {"artifactLocation": _artifact(said.path)}}
    level = "error" if isinstance(said, Problem) else "note"
    return {"level": level, "message": {"text": str(said)}, "locations": [location]}


def _artifact(path: str) -> dict[str, object]:
    """Return a URI relative to the working folder where the file lies under it, so that the log can travel."""
    shown = display_path(path)
    if os.path.isabs(shown) or shown.startswith(".."):
        return {"uri": f"file://{quote(os.fsencode(Path(os.path.abspath(path)).as_posix()))}"}
    return {"uri": quote(os.fsencode(Path(shown).as_posix())), "uriBaseId": "SRCROOT"}
