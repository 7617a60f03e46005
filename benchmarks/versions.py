"""Try every door of the product with the torch and transformers that are installed, and note it in docs/coverage.

Tiny models of the most used classes go through `wrap_blocks`, `verify`, `explain`, `plan`, `save`, offload,
`long_context`, `torch.compile` and `run`; the planted faults of the tests are looked for, with `--every N` each N-th.
Writes the row of these versions in docs/coverage/versions.json, and docs/coverage/versions.md anew; what `--doors`
leaves out stays there as it was. About ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import stopwatch
from benchmarks.stopwatch import CommandFailed
from benchmarks.versions_report import DOORS, FIGURES, PAGE, Row, page, read_rows, write_rows
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.text import error_line

CLASSES = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "MixtralForCausalLM",
    "Gemma2ForCausalLM",
    "GPT2LMHeadModel",
    "BertForMaskedLM",
    "T5ForConditionalGeneration",
    "WhisperForConditionalGeneration",
    "ViTForImageClassification",
    "CLIPModel",
)
OF_LANGUAGE = CLASSES[:4]
"""Those for which `long_context` is, and whose training a script of a few lines is."""
_TRIED_WITH: Mapping[str, Sequence[str]] = {
    "long_context": OF_LANGUAGE,
    "compiled save": ("LlamaForCausalLM", "GPT2LMHeadModel"),  # torch takes its time
    "run": OF_LANGUAGE,
}
PLANTED = "tests/measure/test_planted.py"
_MOST_APART = 1e-4
_LITTLE = 1e-3
_FAILED = re.compile(r"^(?:FAILED|ERROR) \S+?::(.+?)(?: - .*)?$", re.MULTILINE)
_SKIPPED = re.compile(r"(\d+) skipped")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the installed versions. Return 0; 1 where something does not work; 2 where it could not run."""
    options = _options(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    versions = {"python": platform.python_version(), **installed_versions()}
    versions.pop("ckpt-surgery", None)
    worked: dict[str, list[str]] = {door: [] for door in options.doors}
    reasons: dict[str, dict[str, str]] = {}
    for door in options.doors:
        for name in _TRIED_WITH.get(door, CLASSES):
            print(f"versions: {door} {name}", file=sys.stderr, flush=True)
            if why := tried(TRIALS[door], name):
                reasons.setdefault(door, {})[name] = why
            else:
                worked[door].append(name)
    try:
        faults, missed = planted(options.every) if options.every else (0, ())
    except CommandFailed as error:
        print(f"versions: {error}.", file=sys.stderr)
        return 2
    row = Row(versions, worked, reasons, faults, missed)
    kept = {other.key: other for other in (read_rows() if FIGURES.exists() else [])}
    row = row.after(kept[row.key]) if row.key in kept else row
    write_rows(list({**kept, row.key: row}.values()))
    PAGE.write_text(page(read_rows()), encoding="utf-8")
    print(page([row]))
    return int(row.wrong)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="versions", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--every", type=int, default=5, metavar="N", help="each N-th planted fault (default: 5; 0: none)"
    )
    parser.add_argument(
        "--doors", nargs="+", choices=DOORS, default=list(DOORS), help="try these alone (default: all)"
    )
    return parser.parse_args(arguments)


def tried(trial: Callable[[Any, Mapping[str, Any]], None], name: str) -> str:
    """Why a trial fails with a tiny model of this class; "" where it works."""
    import transformers

    from ckpt_surgery import tiny_model

    try:
        tiny = tiny_model(getattr(transformers, name))
        trial(tiny.model.train(), tiny.inputs)
    except Exception as error:  # whatever it is belongs into the table
        return error_line(error)[:300]
    return ""


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
    long_context(model)
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
    """The gradients of a step, and how many of the operators that `save` calls matmul its backward runs."""
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
        ended = stopwatch.measure([sys.executable, "-m", "ckpt_surgery", "run", script], folder=ROOT, keep=20_000)
    said = ended.output + ended.errors
    assert "trained" in said, "the script did not end"
    assert "blocks proved" in said, f"nothing is proved: {' '.join(said.split())[-200:]}"


TRIALS: Mapping[str, Callable[[Any, Mapping[str, Any]], None]] = {
    "wrap": _wrap,
    "verify": _verify,
    "explain": _explain,
    "plan": _plan,
    "save": lambda model, inputs: _wrap(model, inputs, save=["attention"]),
    "offload": lambda model, inputs: _wrap(model, inputs, offload="cpu"),
    "long_context": _long_context,
    "compile": _compile,
    "compiled save": _compiled_save,
    "run": _run,
}


def gradients(model: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The gradients of a step of a model as it stands, and the bytes that it keeps."""
    from ckpt_surgery.measure.step import run_step
    from ckpt_surgery.measure.switch import as_it_stands

    record = run_step(model, inputs, blocks={}, switch=as_it_stands)
    if record.error is not None:
        raise AssertionError(str(record.error))
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


def planted(every: int) -> tuple[int, tuple[str, ...]]:
    """How many planted faults were tried, and which were missed. Raises CommandFailed where the tests don't run."""
    pytest = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    listed = stopwatch.measure([*pytest, "--collect-only", PLANTED], folder=ROOT, keep=2_000_000)
    chosen = [line for line in listed.output.splitlines() if "::" in line and "[" in line][::every]
    ran = stopwatch.measure([*pytest, "-rfE", *chosen], folder=ROOT, accept=(0, 1), keep=2_000_000)
    skipped = _SKIPPED.search(ran.output)  # those that cannot be planted into this release
    return len(chosen) - int(skipped[1] if skipped else 0), tuple(_FAILED.findall(ran.output))


if __name__ == "__main__":
    sys.exit(main())
