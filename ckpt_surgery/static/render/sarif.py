"""The report as a SARIF 2.1.0 log, for code scanning."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ckpt_surgery.codemods.declaration import Subject
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.edits import Edit, edits_of
from ckpt_surgery.static.render.report import CheckReport, RuleText, display_path
from ckpt_surgery.static.results import Problem

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {
    Applicability.SAFE: "error",
    Applicability.UNSAFE: "error",
    Applicability.INFO: "note",
    Applicability.UNKNOWN: "warning",
}


def to_sarif(report: CheckReport, version: str) -> str:
    """The report as a SARIF 2.1.0 log with one run; problems become notifications of its invocation."""
    edits = edits_of(report.shown)
    indices = {rule.code: index for index, rule in enumerate(report.rules)}
    script_codes = {rule.code for rule in report.rules if rule.subject is Subject.SCRIPT}
    run = {
        "tool": {
            "driver": {
                "name": "ckpt_surgery",
                "version": version,
                "rules": [_rule(rule) for rule in report.rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": f"{Path.cwd().as_uri().rstrip('/')}/"}},
        "invocations": [
            {
                "executionSuccessful": not report.problems,
                "toolExecutionNotifications": [_notification(problem) for problem in report.problems],
            }
        ],
        "results": [
            _result(
                finding,
                edits[finding],
                rule_index=indices.get(finding.code, -1),
                kind="function" if finding.code in script_codes else "type",
            )
            for finding in report.shown
        ],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: RuleText) -> dict[str, object]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.documentation, "markdown": rule.documentation},
    }


def _result(finding: Finding, edits: Sequence[Edit], *, rule_index: int, kind: str) -> dict[str, object]:
    """A finding as a SARIF result; `kind` says what its `class_name` is: a function or a type."""
    location: dict[str, object] = {
        "physicalLocation": {
            "artifactLocation": _artifact(finding.path),
            "region": {"startLine": finding.line, "startColumn": finding.column},
        }
    }
    if finding.class_name:
        location["logicalLocations"] = [{"name": finding.class_name, "kind": kind}]
    result: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.applicability],
        "message": {"text": finding.message},
        "locations": [location],
        "properties": {"applicability": finding.applicability.value, "family": finding.family},
    }
    if edits:
        result["fixes"] = [_fix(edits)]
    return result


def _fix(edits: Sequence[Edit]) -> dict[str, object]:
    by_path: dict[str, list[Edit]] = {}
    for edit in edits:
        by_path.setdefault(edit.path, []).append(edit)
    return {
        "description": {"text": "Repair it as `ckpt_surgery apply` does."},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(path),
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


def _notification(problem: Problem) -> dict[str, object]:
    return {
        "level": "error",
        "message": {"text": str(problem)},
        "locations": [{"physicalLocation": {"artifactLocation": _artifact(problem.path)}}],
    }


def _artifact(path: str) -> dict[str, object]:
    """A URI relative to the working folder where the file lies under it, so that the log can travel."""
    shown = display_path(path)
    if os.path.isabs(shown) or shown.startswith(".."):
        return {"uri": f"file://{quote(os.fsencode(Path(os.path.abspath(path)).as_posix()))}"}
    return {"uri": quote(os.fsencode(Path(shown).as_posix())), "uriBaseId": "SRCROOT"}
