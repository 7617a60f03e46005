"""An adoption as lines of plain text, in the order in which it becomes known."""

from __future__ import annotations

from collections import Counter

from ckpt_surgery.adopt.adoption import Adoption, Decision
from ckpt_surgery.adopt.folder import ModelFolder
from ckpt_surgery.adopt.proof import ClassProof, ClassVerdict, kept_bytes
from ckpt_surgery.adopt.source import SourceResult
from ckpt_surgery.codemods import RULES
from ckpt_surgery.measure.results import Level, Mode
from ckpt_surgery.static.render.report import check_report
from ckpt_surgery.static.render.text import finding_lines
from ckpt_surgery.static.results import CheckResult
from ckpt_surgery.text import listed, plural, size, wrapped

REPAIR = "the repair"
"""What a report on a repaired class calls it: `after the repair`."""


def folder_lines(folder: ModelFolder, *, width: int) -> list[str]:
    """Which model the folder holds, and where its code is."""
    kind = f" ({folder.model_type})" if folder.model_type else ""
    classes = [f"{name} in {reference.rpartition('.')[0]}.py" for name, reference in folder.classes.items()]
    return [*wrapped(f"{folder.path}{kind}: {listed(classes)}", width), ""]


def source_lines(source: SourceResult, *, width: int) -> list[str]:
    """The faults that the rules find, each with its place."""
    repair = source.repair
    found = CheckResult(repair.findings, repair.problems, repair.files, 0, repair.seconds)
    lines = finding_lines(check_report(found, RULES), width=width)
    return lines or [f"{plural(repair.files, 'file')} checked: no faults.", ""]


def repair_lines(source: SourceResult, *, unsafe: bool, width: int) -> list[str]:
    """How much the diff repairs, and what it leaves, with what to do about that."""
    if not source.faults:
        return []
    lines = []
    if source.patches:
        names = listed([patch.name for patch in source.patches])
        codes = sorted({code for patch in source.patches for code in patch.change.codes})
        lines += wrapped(f"The repair changes {names} ({', '.join(codes)}).", width)
    left = Counter(finding.code for finding in source.left)
    if left:
        counts = ", ".join(f"{count} {code}" for code, count in sorted(left.items()))
        more = not unsafe and any(finding.repairs for finding in source.left)
        hint = "; --unsafe repairs more" if more else ""
        rule = next(iter(sorted(left)))
        lines += wrapped(f"Left to a person: {counts}{hint}. `ckpt_surgery rule {rule}` says what to do.", width)
    for note in source.repair.notes:
        lines += wrapped(str(note), width, "  - ", "    ")
    return [*lines, ""]


def proof_lines(adoption: Adoption, *, width: int) -> list[str]:
    """The full report on every class, before and after the repair."""
    reports = (proof.paired.lines(width=width, repaired_by=REPAIR) for proof in adoption.proofs)
    return [line for lines in reports for line in (*lines, "")]


def decision_lines(adoption: Adoption, *, trusted: bool, width: int) -> list[str]:
    """What was decided, why, and what to do next."""
    path = adoption.source.folder.path
    match adoption.decision:
        case Decision.NOTHING_TO_REPAIR if not trusted:
            said = [f"Nothing was run: {_NEEDS_TRUST}"]
        case Decision.NOTHING_TO_REPAIR:
            said = [_verdicts(adoption), "What was found is left to a person." if adoption.source.left else ""]
        case Decision.NOT_PROVED if not trusted:
            said = [f"Nothing was run or written: {_NEEDS_TRUST}"]
        case Decision.NOT_PROVED:
            said = [f"{path} is as it was: without a proof nothing is written."]
        case Decision.WORSE:
            said = [f"The repair is refused: {listed(worse_clauses(adoption))}. {path} is as it was."]
        case Decision.PROVED:
            said = [_verdicts(adoption), _unmeasured(adoption), _PENDING]
        case Decision.WRITTEN:
            names = listed([patch.name for patch in adoption.source.patches])
            said = [_verdicts(adoption), _unmeasured(adoption), f"Written: {names} in {path}."]
    return [line for sentence in said if sentence for line in wrapped(sentence, width)]


def worse_clauses(adoption: Adoption) -> list[str]:
    """For each class that a repair made worse: in which modes and levels it fails with it."""
    return [_worse_clause(proof) for proof in adoption.proofs if proof.verdict is ClassVerdict.WORSE]


_PENDING = "The repair was measured on a copy: --write writes it."
_NEEDS_TRUST = "the proof needs --trust-remote-code, which runs the code in this folder: read it first."


def _verdicts(adoption: Adoption) -> str:
    """One sentence: each class with its verdict. Empty where none has one, which is an error of its own."""
    if not adoption.measured:
        return ""
    repaired = adoption.decision is not Decision.NOTHING_TO_REPAIR
    return f"{listed([f'{proof.before.label}: {_words(proof, repaired)}' for proof in adoption.proofs])}."


def _unmeasured(adoption: Adoption) -> str:
    """Which repairs no measurement went through; empty if there are none."""
    names = sorted({finding.class_name or finding.path for finding in adoption.unmeasured})
    return f"Repaired and not measured, because no measured model has it: {listed(names)}." if names else ""


def _words(proof: ClassProof, repaired: bool) -> str:
    match proof.verdict:
        case ClassVerdict.OK:
            return "ok before and after the repair" if repaired else "ok in both modes"
        case ClassVerdict.REPAIRED:
            return "failed before, ok after the repair"
        case ClassVerdict.IMPROVED:
            return "better after the repair, and still fails"
        case ClassVerdict.FAILED:
            return "fails before and after the repair" if repaired else "fails"
        case ClassVerdict.NOT_MEASURED:
            return f"not measured, {proof.final.problem}"
        case ClassVerdict.UNSUPPORTED if proof.final.modes and all(run.ok for run in proof.final.modes):
            return "claims no support, and would be right with supports_gradient_checkpointing = True"
        case verdict:
            return str(verdict)


def _worse_clause(proof: ClassProof) -> str:
    after = proof.final
    if after.status == "not built":
        return f"with it, {after.label} cannot be run ({after.problem})"
    modes: dict[tuple[Level, ...], list[Mode]] = {}
    for mode, levels in proof.worse.items():
        modes.setdefault(levels, []).append(mode)
    worse = [f"{listed(levels)} ({listed(named)}{_growth(proof, named[0])})" for levels, named in modes.items()]
    return f"with it, {after.label} is worse in {listed(worse)}"


def _growth(proof: ClassProof, mode: Mode) -> str:
    """The kept bytes as a clause, where these are what is worse."""
    before, after = kept_bytes(proof.before, mode), kept_bytes(proof.final, mode)
    if "cost" not in proof.worse[mode] or not before or not after or after[0] <= before[0]:
        return ""
    return f": it keeps {size(after[0])} for the backward pass, and kept {size(before[0])}"
