"""adopt.json: everything that is known of an adoption, for machines."""

from __future__ import annotations

import json
from typing import Any

from ckpt_surgery.adopt.adoption import Adoption
from ckpt_surgery.adopt.proof import ClassProof
from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import finite
from ckpt_surgery.version import __version__

SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or goes; a new key leaves it as it is."""


def adoption_json(adoption: Adoption) -> str:
    """One JSON object. Paths are relative to the model's folder; reports are those of `verify`."""
    source = adoption.source
    folder = source.folder
    data = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ckpt_surgery", "version": __version__},
        "versions": dict(adoption.versions),
        "folder": folder.name,
        "model_type": folder.model_type,
        "classes": dict(folder.classes),
        "decision": adoption.decision,
        "clean": adoption.clean,
        "unsafe": adoption.unsafe,
        "findings": [_finding(adoption, finding) for finding in source.repair.findings],
        "left": [_finding(adoption, finding) for finding in source.left],
        "unmeasured": [_finding(adoption, finding) for finding in adoption.unmeasured],
        "changes": [{"path": patch.name, "codes": list(patch.change.codes)} for patch in source.patches],
        "problems": [
            {"path": folder.relative(problem.path), "message": problem.message} for problem in source.repair.problems
        ],
        "notes": [note.text for note in source.repair.notes],
        "proofs": [_proof(adoption, proof) for proof in adoption.proofs],
    }
    return json.dumps(finite(data), indent=2) + "\n"


def _finding(adoption: Adoption, finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "path": adoption.source.folder.relative(finding.path),
        "line": finding.line,
        "column": finding.column,
        "class_name": finding.class_name,
        "message": finding.message,
        "applicability": finding.applicability,
    }


def _proof(adoption: Adoption, proof: ClassProof) -> dict[str, Any]:
    return {
        "model": proof.before.label,
        "verdict": proof.verdict,
        "before": _report(adoption, proof.before),
        "after": None if proof.after is None else _report(adoption, proof.after),
    }


def _report(adoption: Adoption, report: Report) -> dict[str, Any]:
    folder = adoption.source.folder
    source = folder.relative(report.facts.source) if report.facts.source else ""
    return {**report.to_dict(), "source": source, "target": folder.name}
