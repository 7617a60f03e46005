"""model_card.md: a section for the card of the model, that says what works and how it was verified."""

from __future__ import annotations

from ckpt_surgery.adopt.adoption import Adoption, Decision
from ckpt_surgery.adopt.proof import ClassProof, kept_bytes
from ckpt_surgery.adopt.tables import fault_list, versions_text
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import Level, Mode, ModeReport
from ckpt_surgery.report.summary import failed_levels, measured, portable
from ckpt_surgery.text import code, fenced, listed, markdown_table, prose, size

_SWITCH: dict[Mode, str] = {"non_reentrant": "False", "reentrant": "True"}
_NEW_NAME = "The newest releases of transformers call the method `activation_checkpointing_enable`."
_PENDING = "<!-- This describes the code with repair.diff applied. -->"
_COMPARED: dict[Level, str] = {
    "recompute": "recomputed blocks",
    "set": "gradients",
    "state": "buffers and random numbers",
    "cost": "memory",
    "loop": "several steps",
    "precision": "half precision",
}
"""What the levels compare, for a reader who does not know them. `run` and `values` go without saying."""


def model_card(adoption: Adoption) -> str:
    """The section. It is about the code with the repair, unless that was refused; so there has to be a proof."""
    proofs = adoption.described
    parts = [
        "## Gradient checkpointing",
        _PENDING if adoption.decision is Decision.PROVED else "",
        *(_class_part(adoption, proof) for proof in proofs),
        f"{_method(adoption)} Verified with {versions_text(adoption.versions)}:",
        fenced(f"ckpt_surgery verify {adoption.source.folder.name} --trust-remote-code", "console"),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _method(adoption: Adoption) -> str:
    levels = measured([proof.final for proof in adoption.described])[1]
    compared = listed([words for level, words in _COMPARED.items() if level in levels])
    return (
        "A small model, made from this `config.json` with random weights, was trained with and without checkpointing"
        + (f", and the two were compared: {compared}." if compared else ".")
    )


def _class_part(adoption: Adoption, proof: ClassProof) -> str:
    report = proof.final
    name = code(report.label)
    if not report.supported:
        return f"{name} says that it does not support gradient checkpointing."
    if not report.modes:
        return f"{name} could not be measured: {prose(portable(report.problem))}"
    working = [run.mode for run in report.modes if run.ok]
    parts = [_claim(name, working, report), markdown_table(["`use_reentrant`", "works", "memory"], _rows(report))]
    if working:
        parts += ["To switch it on for training:", _example(adoption, report.model, working[0]), _NEW_NAME]
    faults = fault_list(report)
    parts += ["What fails:", faults] if faults else []
    return "\n\n".join(parts)


def _claim(name: str, working: list[Mode], report: Report) -> str:
    if len(working) == len(report.modes):
        return f"{name} supports gradient checkpointing."
    if not working:
        return f"Gradient checkpointing does not work correctly in {name}: train without it."
    return f"{name} supports gradient checkpointing with {listed([_option(mode) for mode in working])} only."


def _rows(report: Report) -> list[list[str]]:
    return [[code(_SWITCH[run.mode]), _works(run), _memory(report, run.mode)] for run in report.modes]


def _works(run: ModeReport) -> str:
    levels = failed_levels(run)
    return f"no: {', '.join(map(code, levels))}" if levels else "yes" if run.ok else run.status


def _memory(report: Report, mode: Mode) -> str:
    kept = kept_bytes(report, mode)
    return f"{size(kept[0])} kept for the backward pass, {size(kept[1])} without" if kept else "-"


def _option(mode: Mode) -> str:
    return code(f"use_reentrant={_SWITCH[mode]}")


def _example(adoption: Adoption, model: str, mode: Mode) -> str:
    folder = adoption.source.folder
    loader = folder.auto_classes.get(model, "AutoModel")
    return fenced(
        f"from transformers import {loader}\n\n"
        f'model = {loader}.from_pretrained("{folder.name}", trust_remote_code=True)\n'
        f'model.gradient_checkpointing_enable({{"use_reentrant": {_SWITCH[mode]}}})\n'
        "model.train()",
        "python",
    )
