"""The folder that `--output` names: the diff, a model card, a pull request and adopt.json, written as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ckpt_surgery.adopt.proof import Adoption, ClassProof, ClassVerdict, Decision
from ckpt_surgery.adopt.source import AdoptError, ModelFolder
from ckpt_surgery.adopt.text import worse_clauses
from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.measure.report import MARKS, Report
from ckpt_surgery.measure.results import LEVEL_TITLES, LEVELS, Level, finite
from ckpt_surgery.report.summary import Overview, portable
from ckpt_surgery.static.write import whole_folder
from ckpt_surgery.text import bullets, code, console, fenced, listed, markdown_table, paragraphs, prose, size, titled
from ckpt_surgery.version import __version__

SCHEMA_VERSION = 1
"""Increased when a key of adopt.json changes its meaning or is removed, not when one is added."""
DIFF = "repair.diff"
"""The name of the file with the repair."""

_NEW_NAME = "The newest releases of transformers call the method `activation_checkpointing_enable`."
_PENDING = f"<!-- This describes the code with {DIFF} applied. -->"
_COMPARED: dict[Level, str] = {
    "recompute": "recomputed blocks",
    "set": "gradients",
    "state": "buffers and random numbers",
    "cost": "memory",
    "loop": "several steps",
    "precision": "half precision",
}
"""What the levels compare, for a reader who does not know them. `run` and `values` need no mention."""
_RUN_IT = "run `ckpt_surgery adopt` with `--trust-remote-code` before you open this as a pull request"
_NO_FAULT = "No fault was measured before the repair either: it changes how the code checkpoints."
_METHOD = (
    "`ckpt_surgery verify` ran one training step of a small model with random weights, made from `config.json`, "
    "without checkpointing and with it in both modes, on the code as it was and with the repair."
)
_NEEDS_LAYER = (
    "The repaired code imports `GradientCheckpointingLayer`, which came with transformers 4.52: with an older release "
    "it cannot be loaded."
)
_UNSAFE = "Repairs were made that may break code elsewhere (`--unsafe`): look at the callers of what changed."


def check_output(out: Path, folder: ModelFolder) -> None:
    """Check that the pages can be written to `out`.

    Raises:
        AdoptError: `out` is inside the model's folder, is not a folder, is not empty, or cannot be made.
    """
    if out.resolve().is_relative_to(folder.path.resolve()):
        raise AdoptError(f"--output {out} lies in the model's folder: name one outside {folder.path}")
    if out.exists() and not out.is_dir():
        raise AdoptError(f"--output {out} is a file: name a folder")
    if out.is_dir() and any(out.iterdir()):
        raise AdoptError(f"--output {out} is not empty, and nothing in it is overwritten: name a new folder")
    if not out.absolute().parent.is_dir():
        raise AdoptError(f"--output {out} cannot be made: there is no folder {out.absolute().parent}")


def write_pages(adoption: Adoption, out: Path) -> tuple[str, ...]:
    """Write the pages into `out`, which is new or empty, and return their names.

    Raises:
        AdoptError: they cannot be written.
    """
    pages = documents(adoption)
    try:
        with whole_folder(out) as folder:
            for name, data in pages.items():
                (folder / name).write_bytes(data)
            check_output(out, adoption.source.folder)
    except OSError as error:
        raise AdoptError(f"--output {out} cannot be written to: {error.strerror or error}") from None
    return tuple(pages)


def documents(adoption: Adoption) -> dict[str, bytes]:
    """Return the pages by file name: no diff if nothing is repaired, no model card if nothing was measured."""
    texts = {"model_card.md": model_card(adoption)} if adoption.measured else {}
    texts |= {"pull_request.md": pull_request(adoption)} if adoption.source.patches else {}
    texts["adopt.json"] = adoption_json(adoption)
    diff = {DIFF: adoption.source.diff} if adoption.source.patches else {}
    return diff | {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}


def adoption_json(adoption: Adoption) -> str:
    """Return one JSON object. Paths are relative to the model's folder; reports are those of `verify`."""
    source = adoption.source
    folder = source.folder

    def finding(entry: Finding) -> dict[str, Any]:
        names = ("code", "path", "line", "column", "class_name", "message", "applicability")
        return {name: getattr(entry, name) for name in names} | {"path": folder.relative(entry.path)}

    def report(entry: Report) -> dict[str, Any]:
        path = folder.relative(entry.facts.source) if entry.facts.source else ""
        return {**entry.to_dict(), "source": path, "target": folder.name}

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
        "findings": list(map(finding, source.repair.findings)),
        "left": list(map(finding, source.left)),
        "unmeasured": list(map(finding, adoption.unmeasured)),
        "changes": [{"path": name, "codes": list(change.codes)} for name, change in source.patches.items()],
        "problems": [
            {"path": folder.relative(problem.path), "message": problem.message} for problem in source.repair.problems
        ],
        "notes": [note.text for note in source.repair.notes],
        "proofs": [
            {
                "model": proof.before.label,
                "verdict": proof.verdict,
                "before": report(proof.before),
                "after": None if proof.after is None else report(proof.after),
            }
            for proof in adoption.proofs
        ],
    }
    return json.dumps(finite(data), indent=2) + "\n"


def model_card(adoption: Adoption) -> str:
    """Return a section for the model card: what works, how to switch it on and how that was verified.

    It describes the code with the repair, unless that was refused. Something must have been measured.
    """
    levels = Overview([proof.final for proof in adoption.described]).measured[1]
    compared = listed([words for level, words in _COMPARED.items() if level in levels])
    how = f", and the two were compared: {compared}." if compared else "."
    card = paragraphs(
        "## Gradient checkpointing",
        _PENDING if adoption.decision is Decision.PROVED else "",
        *(_card_of_class(adoption.source.folder, proof.final) for proof in adoption.described),
        "A small model, made from this `config.json` with random weights, was trained with and without checkpointing"
        f"{how} Verified with {adoption.measured_with}:",
        fenced(f"ckpt_surgery verify {adoption.source.folder.name} --trust-remote-code", "console"),
    )
    return f"{card}\n"


def _card_of_class(folder: ModelFolder, report: Report) -> str:
    name = code(report.label)
    if not report.supported:
        return f"{name} says that it does not support gradient checkpointing."
    if not report.modes:
        return f"{name} could not be measured: {prose(portable(report.problem))}"
    rows, working = [], []
    for run in report.modes:
        option = str(run.mode == "reentrant")
        levels = ", ".join(map(code, run.failed_levels))
        memory = "-"
        if cost := run.cost:
            memory = f"{size(cost.kept_bytes)} kept for the backward pass, {size(cost.reference_kept_bytes)} without"
        rows.append([code(option), f"no: {levels}" if levels else "yes" if run.ok else run.status, memory])
        working += [option] * run.ok
    if len(working) == len(report.modes):
        claim = f"{name} supports gradient checkpointing."
    elif working:
        options = listed([code(f"use_reentrant={option}") for option in working])
        claim = f"{name} supports gradient checkpointing with {options} only."
    else:
        claim = f"Gradient checkpointing does not work correctly in {name}: train without it."
    parts = [claim, markdown_table(["`use_reentrant`", "works", "memory"], rows)]
    if working:
        loader = folder.auto_classes.get(report.model, "AutoModel")
        example = (
            f"from transformers import {loader}\n\n"
            f'model = {loader}.from_pretrained("{folder.name}", trust_remote_code=True)\n'
            f'model.gradient_checkpointing_enable({{"use_reentrant": {working[0]}}})\n'
            "model.train()"
        )
        parts += ["To switch it on for training:", fenced(example, "python"), _NEW_NAME]
    return paragraphs(*parts, titled("What fails:", _faults(report)))


def pull_request(adoption: Adoption) -> str:
    """Return what a pull request to the model's repository says: what was wrong, what changes, and the proof."""
    source = adoption.source
    changes = [f"{code(name)} ({', '.join(change.codes)})" for name, change in source.patches.items()]
    codes = {finding.code for finding in source.repair.repaired}
    rules = bullets(f"{rule.code} ({code(rule.name)}): {prose(rule.summary)}" for rule in RULES if rule.code in codes)
    notes = [_NEEDS_LAYER] if source.imports_layer else []
    notes += [_UNSAFE] if adoption.unsafe else []
    notes += dict.fromkeys(
        f"{code(finding.class_name)} ({finding.code}) was repaired and not measured: no measured model has it."
        for finding in adoption.unmeasured
    )
    notes += [prose(note.text) for note in source.repair.notes]
    measurements = ""
    if adoption.measured:
        fine = all(proof.verdict in (ClassVerdict.OK, ClassVerdict.UNSUPPORTED) for proof in adoption.proofs)
        measurements = paragraphs(_METHOD, _NO_FAULT if fine else "", *map(_measured_class, adoption.proofs))
    banner = ""
    if adoption.decision is Decision.WORSE:
        clauses = listed([prose(clause) for clause in worse_clauses(adoption)])
        banner = f"> **Do not open this as a pull request**: {clauses}."
    elif adoption.decision is Decision.NOT_PROVED:
        problems = [prose(portable(proof.before.problem)) for proof in adoption.proofs if proof.before.problem]
        why = "; ".join(dict.fromkeys(problems)) or _RUN_IT
        banner = f"> **Not measured**: whether this repair works was not proved: {why}."
    verify = "ckpt_surgery verify . --trust-remote-code"
    page = paragraphs(
        f"# Repair gradient checkpointing in {listed([code(name) for name in source.folder.classes])}",
        banner,
        titled("## What was wrong", _findings(source.folder, source.faults)),
        titled("## What this changes", bullets(changes)),
        titled("What these rules find:", rules),
        titled("Before you merge it:", bullets(notes)),
        titled("## Before and after", measurements),
        titled("## Left to a person", _findings(source.folder, source.left)),
        "## Reproduce",
        "In the model's folder, first on the code as it was, then with the repair:",
        console([verify, f"git apply {DIFF}", verify]),
        f"Versions: {adoption.measured_with}." if adoption.versions else "",
    )
    return f"{page}\n"


def _measured_class(proof: ClassProof) -> str:
    """Return a table of the levels by mode, before and after the repair, and the faults before and after."""
    before, after = proof.before, proof.final
    columns = proof.paired.columns(alone=True)
    rows = [
        [f"{code(level)}: {LEVEL_TITLES[level]}", *(MARKS[run.cell(level)] if run else "-" for _, run in columns)]
        for level in LEVELS
        if any(run and level in run.outcomes for _, run in columns)
    ]
    costs = [run.cost if run else None for _, run in columns]
    kept = [f"{size(cost.kept_bytes)} of {size(cost.reference_kept_bytes)}" if cost else "-" for cost in costs]
    rows += [["memory kept for the backward pass", *kept]] if any(cell != "-" for cell in kept) else []
    return paragraphs(
        f"### {code(before.label)}: {proof.verdict}",
        *(prose(portable(problem)) for problem in dict.fromkeys([before.problem, after.problem])),
        markdown_table(["level", *(title for title, _ in columns)], rows) if columns else "",
        titled("Faults before:", _faults(before)),
        titled("Faults after:", _faults(after)),
    )


def _findings(folder: ModelFolder, findings: Iterable[Finding]) -> str:
    """List the findings, each with its place and message."""
    return bullets(
        f"{code(f'{folder.relative(finding.path)}:{finding.line}')} {finding.code}"
        f"{f' {code(finding.class_name)}' if finding.class_name else ''}: {prose(finding.message)}"
        for finding in findings
    )


def _faults(report: Report) -> str:
    """List every fault once, with its modes; empty if there are none."""
    return bullets(
        f"{listed([code(mode) for mode in modes])}, {code(fault.level)}: {prose(portable(str(fault)))}"
        for modes, fault in report.merged_faults
    )
