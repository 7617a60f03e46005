"""Put what `adopt` found, repaired and decided into lines of plain text."""

from __future__ import annotations

from collections import Counter

from ckpt_surgery.adopt.proof import Adoption, ClassProof, ClassVerdict, Decision
from ckpt_surgery.adopt.source import SourceResult
from ckpt_surgery.codemods import RULES
from ckpt_surgery.measure.results import Level, Mode
from ckpt_surgery.static.render.report import CheckReport
from ckpt_surgery.static.results import CheckResult
from ckpt_surgery.text import listed, plural, size, wrapped

_PENDING = "The repair was measured on a copy: --write writes it."
_NEEDS_TRUST = "the proof needs --trust-remote-code, which runs the code in this folder: read it first."


def source_lines(source: SourceResult, *, width: int) -> list[str]:
    """Return the lines that name the model of the folder, and the faults that the rules find, each with its place."""
    folder, repair = source.folder, source.repair
    kind = f" ({folder.model_type})" if folder.model_type else ""
    classes = [f"{name} in {reference.rpartition('.')[0]}.py" for name, reference in folder.classes.items()]
    checked = CheckResult(repair.findings, repair.problems, repair.files, 0, repair.seconds)
    findings = CheckReport.of(checked, RULES).finding_lines(width=width)
    none = [f"{plural(repair.files, 'file')} checked: no faults.", ""]
    return [*wrapped(f"{folder.path}{kind}: {listed(classes)}", width), "", *(findings or none)]


def repair_lines(source: SourceResult, *, unsafe: bool, width: int) -> list[str]:
    """Return the lines that say what the diff repairs, what it leaves, and what to do about that."""
    if not source.faults:
        return []
    lines = []
    if source.patches:
        codes = sorted({code for change in source.repair.changes for code in change.codes})
        lines += wrapped(f"The repair changes {listed([*source.patches])} ({', '.join(codes)}).", width)
    left = sorted(Counter(finding.code for finding in source.left).items())
    if left:
        counts = ", ".join(f"{count} {code}" for code, count in left)
        more = not unsafe and any(finding.repairs for finding in source.left)
        hint = "; --unsafe repairs more" if more else ""
        lines += wrapped(f"Left to a person: {counts}{hint}. `ckpt_surgery rule {left[0][0]}` says what to do.", width)
    for note in source.repair.notes:
        lines += wrapped(str(note), width, "  - ", "    ")
    return [*lines, ""]


def decision_lines(adoption: Adoption, *, trusted: bool, width: int) -> list[str]:
    """Return the lines that say what was decided, why, and what to do next."""
    path = adoption.source.folder.path
    # one sentence for all classes; empty if none has a verdict, which the command reports as an error
    repaired = adoption.decision is not Decision.NOTHING_TO_REPAIR
    verdicts = listed([f"{proof.before.label}: {_words(proof, repaired)}" for proof in adoption.proofs])
    verdicts = f"{verdicts}." if adoption.measured else ""
    names = listed(sorted({finding.class_name or finding.path for finding in adoption.unmeasured}))
    unmeasured = f"Repaired and not measured, because no measured model has it: {names}." if names else ""
    match adoption.decision:
        case Decision.NOTHING_TO_REPAIR if not trusted:
            sentences = [f"Nothing was run: {_NEEDS_TRUST}"]
        case Decision.NOTHING_TO_REPAIR:
            sentences = [verdicts, "What was found is left to a person." if adoption.source.left else ""]
        case Decision.NOT_PROVED if not trusted:
            sentences = [f"Nothing was run or written: {_NEEDS_TRUST}"]
        case Decision.NOT_PROVED:
            sentences = [f"{path} is as it was: without a proof nothing is written."]
        case Decision.WORSE:
            sentences = [f"The repair is refused: {listed(worse_clauses(adoption))}. {path} is as it was."]
        case Decision.PROVED:
            sentences = [verdicts, unmeasured, _PENDING]
        case Decision.WRITTEN:
            sentences = [verdicts, unmeasured, f"Written: {listed([*adoption.source.patches])} in {path}."]
    return [line for sentence in sentences if sentence for line in wrapped(sentence, width)]


def worse_clauses(adoption: Adoption) -> list[str]:
    """Return, for each class that the repair makes worse, a clause with the levels and modes."""
    clauses = []
    for proof in adoption.proofs:
        after = proof.final
        if proof.verdict is ClassVerdict.WORSE and after.status == "not built":
            clauses.append(f"with it, {after.label} cannot be run ({after.problem})")
        elif proof.verdict is ClassVerdict.WORSE:
            modes: dict[tuple[Level, ...], list[Mode]] = {}
            for mode, levels in proof.worse.items():
                modes.setdefault(levels, []).append(mode)
            costs_before, costs_after = ({run.mode: run.cost for run in each.modes} for each in (proof.before, after))
            worse = []
            for levels, same in modes.items():
                was, now = costs_before.get(same[0]), costs_after.get(same[0])
                growth = ""
                if was and now and "cost" in levels and now.kept_bytes > was.kept_bytes:
                    growth = (
                        f": it keeps {size(now.kept_bytes)} for the backward pass, and kept {size(was.kept_bytes)}"
                    )
                worse.append(f"{listed(levels)} ({listed(same)}{growth})")
            clauses.append(f"with it, {after.label} is worse in {listed(worse)}")
    return clauses


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
