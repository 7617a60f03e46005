"""pull_request.md: what a pull request to the model's repository says: what was wrong, what changes, and the proof."""

from __future__ import annotations

import shlex

from ckpt_surgery.adopt.adoption import Adoption, Decision
from ckpt_surgery.adopt.proof import ClassProof, ClassVerdict
from ckpt_surgery.adopt.tables import console, fault_list, finding_list, level_table, rule_list, versions_text
from ckpt_surgery.adopt.text import worse_clauses
from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.report.summary import portable
from ckpt_surgery.text import bullets, code, listed, prose

DIFF = "repair.diff"
"""The name of the file with the repair."""

_UNPROVED = "> **Not measured**: whether this repair works was not proved"
_RUN_IT = "run `ckpt_surgery adopt` with `--trust-remote-code` before you open this as a pull request"
_NO_FAULT = "No fault was measured before the repair either: it changes how the code checkpoints."
_METHOD = (
    "`ckpt_surgery verify` ran one training step of a small model with random weights, made from `config.json`, "
    "without checkpointing and with it in both modes, on the code as it was and with the repair."
)
_LAYER = (
    "The repaired code imports `GradientCheckpointingLayer`, which came with transformers 4.52: with an older release "
    "it cannot be loaded."
)
_UNSAFE = "Repairs were made that may break code elsewhere (`--unsafe`): look at the callers of what changed."


def pull_request(adoption: Adoption) -> str:
    """The page, for a folder with a repair."""
    source = adoption.source
    changes = [f"{code(patch.name)} ({', '.join(patch.change.codes)})" for patch in source.patches]
    notes = [_LAYER] if any(patch.imports_layer for patch in source.patches) else []
    notes += [_UNSAFE] if adoption.unsafe else []
    notes += dict.fromkeys(map(_unmeasured, adoption.unmeasured))
    notes += [prose(note.text) for note in source.repair.notes]
    parts = [
        f"# Repair gradient checkpointing in {listed([code(name) for name in source.folder.classes])}",
        _banner(adoption),
        _section("What was wrong", finding_list(adoption, source.faults)),
        _section("What this changes", bullets(changes)),
        _titled("What these rules find:", rule_list(finding.code for finding in source.repair.repaired)),
        _titled("Before you merge it:", bullets(notes)),
        _section("Before and after", _measurements(adoption)),
        _section("Left to a person", finding_list(adoption, source.left)),
        _section("Reproduce", _reproduction(adoption)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _titled(title: str, body: str) -> str:
    return f"{title}\n\n{body}" if body else ""


def _banner(adoption: Adoption) -> str:
    if adoption.decision is Decision.WORSE:
        clauses = listed([prose(clause) for clause in worse_clauses(adoption)])
        return f"> **Do not open this as a pull request**: {clauses}."
    if adoption.decision is not Decision.NOT_PROVED:
        return ""
    problems = [prose(portable(proof.before.problem)) for proof in adoption.proofs if proof.before.problem]
    return f"{_UNPROVED}: {'; '.join(dict.fromkeys(problems)) or _RUN_IT}."


def _measurements(adoption: Adoption) -> str:
    if not adoption.measured:
        return ""
    fine = all(proof.verdict in (ClassVerdict.OK, ClassVerdict.UNSUPPORTED) for proof in adoption.proofs)
    return "\n\n".join([_METHOD, *([_NO_FAULT] if fine else []), *map(_class_part, adoption.proofs)])


def _unmeasured(finding: Finding) -> str:
    return f"{code(finding.class_name)} ({finding.code}) was repaired and not measured: no measured model has it."


def _class_part(proof: ClassProof) -> str:
    before, after = proof.before, proof.final
    parts = [f"### {code(before.label)}: {proof.verdict}"]
    parts += [prose(portable(problem)) for problem in dict.fromkeys(filter(None, [before.problem, after.problem]))]
    parts += [level_table(proof.paired)] if before.modes or after.modes else []
    parts += [_titled("Faults before:", fault_list(before)), _titled("Faults after:", fault_list(after))]
    return "\n\n".join(filter(None, parts))


def _reproduction(adoption: Adoption) -> str:
    verify = "ckpt_surgery verify . --trust-remote-code"
    apply = shlex.join(["git", "apply", DIFF])
    versions = f"Versions: {versions_text(adoption.versions)}." if adoption.versions else ""
    parts = ["In the model's folder, first on the code as it was, then with the repair:"]
    return "\n\n".join(filter(None, [*parts, console([verify, apply, verify]), versions]))
