"""Try every door of the product with the torch and transformers that are installed, and note it in docs/coverage.

    python -m benchmarks.versions versions.jsonl --page

Tiny models of the most used classes go through `wrap_blocks`, `verify`, `explain`, `plan`, `save`, offload,
`long_context`, `torch.compile` and `run`; each fifth of the planted faults of the tests is looked for. Exits with 1
where something fails.
"""

from __future__ import annotations

import copy
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.stopwatch import PYTEST, measure, run_tests
from benchmarks.survey import MODELS, ROOT, Page, Row, Survey, step_as_it_stands, tiny, written_by
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.text import code, markdown_table

CLASSES = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "MixtralForCausalLM", "Gemma2ForCausalLM", "GPT2LMHeadModel",
    "BertForMaskedLM", "T5ForConditionalGeneration", "WhisperForConditionalGeneration", "ViTForImageClassification",
    "CLIPModel",
)  # fmt: skip
OF_LANGUAGE = CLASSES[:4]
"""Those for which `long_context` is, and whose training a script of a few lines is."""
PLANTED = "tests/measure/test_planted.py"
_MOST_APART = 1e-4
_LITTLE = 1e-3
_SCRIPT = """\
import torch, transformers
from ckpt_surgery import tiny_config

config = tiny_config(transformers.{name}.config_class)
config.use_cache = False
model = transformers.{name}(config).train()
model.gradient_checkpointing_enable({{"use_reentrant": False}})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    ids = torch.randint(config.vocab_size, (2, 16))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""


_WHAT = """\
The whole test suite runs with torch 2.13.0 and transformers 5.23.0 and 4.57.6. With other versions tiny models of the
most used classes go through these doors, on the processor, and `verify` looks for faults that were planted into the
checkpointing of transformers 5: for all of them, or for every fifth. A door added later was not tried with all."""


def _wrap(model: Any, inputs: Mapping[str, Any], **options: Any) -> None:
    from ckpt_surgery import wrap_blocks

    before, kept = gradients(model, inputs)
    surgery = wrap_blocks(model, **options)
    after, less = gradients(model, inputs)
    _same(before, after)
    surgery.undo()
    assert less < kept, f"{less:,} bytes are kept, and {kept:,} without checkpointing"


def _verify(model: Any, inputs: Mapping[str, Any]) -> None:
    from ckpt_surgery import verify, wrap_blocks

    wrap_blocks(model)
    report = verify(model, inputs)
    assert report.ok, "; ".join(str(fault) for _, fault in report.faults) or report.problem or report.status


def _explain(model: Any, inputs: Mapping[str, Any]) -> None:
    from ckpt_surgery import explain, wrap_blocks

    wrap_blocks(model, self_check="never")
    _, kept = gradients(model, inputs)
    told = explain(model, inputs)
    assert told.kept_bytes == kept, f"{told.kept_bytes:,} bytes are told, and {kept:,} are kept"


def _plan(model: Any, inputs: Mapping[str, Any]) -> None:
    import torch

    from ckpt_surgery import explain, plan

    inputs = {name: torch.cat([value] * 8) if torch.is_tensor(value) else value for name, value in inputs.items()}
    plain = explain(model, inputs, optimizer="none", device="H100")
    before, _ = gradients(model, inputs)
    found = plan(model, inputs, plain.peak_bytes - 1, optimizer="none")
    applied = found.apply(model)
    assert applied is not None, "nothing is planned"
    after, _ = gradients(model, inputs)
    _same(before, after, most=_MOST_APART)


def _long_context(model: Any, inputs: Mapping[str, Any]) -> None:
    from benchmarks.long_context import drop_nothing
    from ckpt_surgery import long_context

    drop_nothing(model)  # tiles draw other masks
    before, _ = gradients(model, inputs)
    long_context(model, host=True)  # cuts short texts too
    after, _ = gradients(model, inputs)
    _same(before, after, most=_MOST_APART)


def _compile(model: Any, inputs: Mapping[str, Any]) -> None:
    import torch

    from ckpt_surgery import wrap_blocks

    before, _ = gradients(model, inputs)
    wrap_blocks(model, save=["attention"])
    after, _ = gradients(torch.compile(model, backend="aot_eager"), inputs)
    _same(before, after, most=_MOST_APART)


def _compiled_save(model: Any, inputs: Mapping[str, Any]) -> None:
    import torch

    from ckpt_surgery import wrap_blocks

    surgery = wrap_blocks(model)
    before, most = _products(model, inputs)
    surgery.undo()
    for whole in (True, False):
        torch._dynamo.reset()
        again = copy.deepcopy(model)
        stacks = wrap_blocks(again, save=["attention", "matmul:2"]).stacks
        blocks = [block.module for stack in stacks for block in stack.blocks]
        for part in [again] if whole else blocks:
            part.compile(backend="aot_eager")
        after, ran = _products(again, inputs)
        _same(before, after, most=_MOST_APART)
        assert ran <= most - len(blocks), f"the backward runs {ran} products, and {most} without save"


def _products(model: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the gradients of a step, and how many of the operators that `save` calls matmul its backward runs."""
    import torch

    from ckpt_surgery.measure.loss import loss_of
    from ckpt_surgery.runtime.selective.policies import VOCABULARY

    model.zero_grad()
    torch.manual_seed(0)  # tiny models have dropout
    loss = loss_of(model(**inputs))
    with torch.autograd.profiler.profile() as seen:  # sees what operators of higher order run, in each release
        torch.autograd.backward(loss)
    kernels = VOCABULARY["matmul"] - {"aten::linear"}  # which runs one of the others
    ran = sum(event.name in kernels for event in seen.function_events or ())
    return {name: each.grad for name, each in model.named_parameters()}, ran


def _run(model: Any, inputs: Mapping[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(_SCRIPT.format(name=type(model).__name__), encoding="utf-8")
        ended = measure([sys.executable, "-m", "ckpt_surgery", "run", script], folder=ROOT, keep=20_000)
    said = ended.output + ended.errors
    assert "trained" in said, "the script did not end"
    assert "blocks proved" in said, f"nothing is proved: {' '.join(said.split())[-200:]}"


@dataclass(frozen=True, slots=True)
class Door:
    """What is tried with some classes, and what has to come out of it."""

    right: str
    trial: Callable[[Any, Mapping[str, Any]], None]
    classes: Sequence[str] = CLASSES


DOORS: Mapping[str, Door] = {
    "wrap": Door(
        "gradients after `wrap_blocks` equal those of a step without checkpointing, and less is kept",
        _wrap,
    ),
    "verify": Door("`verify` finds nothing wrong after `wrap_blocks`", _verify),
    "explain": Door("`explain` tells to the byte what a step keeps", _explain),
    "plan": Door("`plan` finds a way to a lower peak, with which gradients are equal but for rounding", _plan),
    "save": Door('`wrap_blocks(save=["attention"])`: gradients are equal', partial(_wrap, save=["attention"])),
    "offload": Door('`wrap_blocks(offload="cpu")`: gradients are equal', partial(_wrap, offload="cpu")),
    "long_context": Door("`long_context`: gradients are equal but for rounding", _long_context, OF_LANGUAGE),
    "compile": Door("`torch.compile` after `wrap_blocks`: gradients are equal but for rounding", _compile),
    "compiled save": Door(
        "`torch.compile` of the model, and of each block, after `wrap_blocks(save=...)`: gradients are equal but for "
        "rounding, and the backward runs fewer products for each block than without `save`",
        _compiled_save,
        ("LlamaForCausalLM", "GPT2LMHeadModel"),  # torch takes its time
    ),
    "run": Door(
        "a script that trains the model ends under `ckpt_surgery run`, with every block proved", _run, OF_LANGUAGE
    ),
}
"""What is tried, by column of the page."""


def gradients(model: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the gradients of a step of a model as it stands, and the bytes that it keeps."""
    record = step_as_it_stands(model, inputs)
    return {name.replace("_orig_mod.", ""): each for name, each in record.gradients.items()}, record.memory.kept


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, most: float = 0.0) -> None:
    """Raise AssertionError where gradients differ by more than `most`, as a share of the largest in their tensor.

    A tensor of next to nothing, as that of a bias of keys, is held against the largest of all.
    """
    import torch

    assert ours.keys() == theirs.keys(), "other parameters have gradients"
    largest = max(float(gradient.abs().max()) for gradient in ours.values() if gradient is not None)
    for name, gradient in ours.items():
        other = theirs[name]
        assert (gradient is None) == (other is None), f"{name} has no gradient in one of the two"
        if gradient is not None and not torch.equal(gradient, other):
            apart = float((gradient - other).abs().max()) / max(float(gradient.abs().max()), _LITTLE * largest)
            assert apart <= most, f"the gradient of {name} is {apart:.2g} apart"


def planted() -> Row:
    """Look for each fifth planted fault: how many were tried, and which were missed. Raises CommandFailed."""
    listed = measure([*PYTEST, "--collect-only", PLANTED], folder=ROOT, keep=2_000_000)
    chosen = [line for line in listed.output.splitlines() if "::" in line and "[" in line][::5]
    ran = run_tests(*chosen)  # those are skipped that cannot be planted into this release
    return {"faults": len(chosen) - ran["skipped"], "missed": [name.partition("::")[2] for name in ran["failed"]]}


def cases() -> list[str]:
    """Return the doors with the classes that go through them, and the planted faults."""
    return [*(f"{door}: {name}" for door, what in DOORS.items() for name in what.classes), "planted"]


def tried(case: str) -> Row:
    """Try one door with one class, or the planted faults."""
    if case == "planted":
        return planted()
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    door, _, name = case.partition(": ")
    made = tiny(name)
    DOORS[door].trial(made.model, made.inputs)
    return {}


def key(row: Row) -> tuple[Version, Version, Version]:
    """Return torch, transformers and Python, by which rows of the page are told apart and ordered."""
    torch, transformers, python = (Version(row["versions"][name]) for name in ("torch", "transformers", "python"))
    return Version(torch.public), transformers, python


def figures_of(rows: Sequence[Row]) -> Row:
    """Return the row of what was tried."""
    versions = {"python": platform.python_version(), **installed_versions()}
    versions.pop("ckpt-surgery", None)
    worked: dict[str, list[str]] = {}
    reasons: dict[str, dict[str, str]] = {}
    found: dict[str, Any] = {"faults": 0, "missed": []}
    for row in rows:
        door, _, name = row["case"].partition(": ")
        if door == "planted":
            problem = [row["problem"]] if "problem" in row else []
            found = {"faults": row.get("faults", 0), "missed": [*row.get("missed", ()), *problem]}
            continue
        worked.setdefault(door, [])
        if "problem" in row:
            reasons.setdefault(door, {})[name] = row["problem"]
        else:
            worked[door].append(name)
    return {"versions": versions, "worked": worked, "reasons": reasons, **found}


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page."""
    rows = [(*map(str, key(row)), row) for row in sorted(figures["rows"], key=key)]
    yield "# Versions of torch and transformers"
    yield _WHAT
    table = [
        [
            *versions,
            f"{row['faults'] - len(row['missed']):,} of {row['faults']:,}" if row["faults"] else "not tried",
            *(_share(row, door) for door in DOORS),
        ]
        for *versions, row in rows
    ]
    titles = ["torch", "transformers", "Python", "tests of planted faults passed", *DOORS]
    yield markdown_table(titles, table)
    yield "\n".join(f"- {name}: {door.right}." for name, door in DOORS.items())
    yield "## What does not work"
    failures = [
        f"- torch {torch}, transformers {transformers}: {what}"
        for torch, transformers, _, row in rows
        for what in (
            *(f"{code(fault)} fails." for fault in row["missed"]),
            *(f"{door} of {code(name)}: {why}" for door, each in row["reasons"].items() for name, why in each.items()),
        )
    ]
    yield "\n".join(failures) or "Nothing that is known."


def _share(row: Row, door: str) -> str:
    if door not in row["worked"]:
        return "not tried"
    worked = len(row["worked"][door])
    return f"{worked} of {worked + len(row['reasons'].get(door, {}))}"


def conclude(rows: Sequence[Row], known: int, page: bool) -> bool:
    """Show what was tried, and tell whether something does not work."""
    made = figures_of(rows)
    PAGE.show(
        {"rows": [made]}, page, lambda kept: {"rows": [*{key(row): row for row in (*kept["rows"], made)}.values()]}
    )
    return bool(made["missed"]) or any(made["reasons"].values())


PAGE = Page("versions", written_by("python -m benchmarks.versions", "versions"), sections)
SURVEY = Survey("versions", __doc__, cases, tried, conclude, MODELS, seconds=3600.0, shuffled=False)
if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(SURVEY.main())
