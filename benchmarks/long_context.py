"""Is a step after `long_context` the step that the model's own code makes? Every causal and conditional class.

Each class is built tiny, with random weights, in float64 and without dropout, in a process of its own. One training
step of it is held against one after `long_context`: the loss, and each gradient by its largest difference, relative to
the largest gradient; and which losses were computed without logits. Casts to float32 in the model's code are left out
in both steps: they would hide what is compared. Then both steps in bfloat16, with all casts: how far the gradients of
each are from those in float32. Exits with 1 where a step differs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from enum import StrEnum
from math import inf, isfinite
from typing import Any
from unittest.mock import patch

from benchmarks.survey import MODELS, Page, Row, Survey, installed
from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.text import code, error_line, listed, markdown_table, plural, prose, titled

TOKENS = 256
"""What is said of the length of a batch, so that the tiny MLPs run in several shards."""
CLOSE = 1e-12
FARTHER = 1.1
"""How much farther from float32 the gradients of a step in bfloat16 may be than those of the model's own step."""
_MAKERS = ("empty", "empty_like", "full", "full_like", "ones", "ones_like", "tensor", "zeros", "zeros_like")
"""The functions of torch that make tensors, in float32 where their callers say so."""
Step = tuple[float, Mapping[str, Any]]
"""A loss, and the gradients by name."""
ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
UNCOMPARED = {"way": None, "far": 0.0, "why": "", "tiled": 0, "cut": 0, "not_cut": "", "half": 0.0, "own_half": 0.0}
"""What is found of a class that is not compared.

Of one that is: the `way` of its loss, and why it is not `FUSED`; `far`, the largest relative difference in the loss,
the gradients, and the gradients after `undo`; how many MLPs are tiled, and blocks cut at their attention, and why
others are not; `half` and `own_half`, how far the gradients in bfloat16 are from those in float32, relative to their
norm, after `long_context` and without it: 0 where there is no such step.
"""


class Problem(StrEnum):
    """Why a class was not compared."""

    NOT_BUILT = "no tiny model of it could be made"
    NO_LOSS = "it computes no loss from its tiny inputs"
    OWN_STEP = "its own step does not run in float64"
    REFUSED = "`long_context` refuses it"
    RAISED = "the step after `long_context` raised"
    ENDED = "its process ended, or took too long"


class Way(StrEnum):
    """The way in which a compared class computed its loss."""

    FUSED = "the loss was computed without logits"
    MADE = "logits were made for a part of the loss, or for all of it"
    ALONE = "the head, or the loss, was left alone"


class NotCompared(Exception):
    """A class cannot be compared: the problem, and the reason."""


@contextmanager
def problem(kind: Problem, *errors: type[Exception]) -> Iterator[None]:
    """Raise these errors as a NotCompared of this kind."""
    try:
        yield
    except errors as error:
        raise NotCompared(kind, error_line(error)) from error


def causal_classes() -> list[str]:
    """Return the classes for causal and conditional generation."""
    from ckpt_surgery.tiny import model_classes

    return [name for name in sorted(model_classes()) if name.endswith(ENDINGS)]


def examine(name: str) -> Row:
    """Return what `long_context` does to one class, or the `kind` of problem that it has."""
    warnings.simplefilter("ignore")
    try:
        return compared(name)
    except NotCompared as error:
        return {"kind": error.args[0], "why": error.args[1]}


def compared(name: str) -> dict[str, Any]:
    """Compare the steps of one class. Raises NotCompared."""
    from ckpt_surgery.long_sequences.long_context import long_context
    from ckpt_surgery.tiny import model_classes, tiny_model

    with problem(Problem.NOT_BUILT, CkptSurgeryError):
        built = tiny_model(model_classes()[name].load())
    model, inputs = as_dtype(built.model, built.inputs, "float64")
    with double_precision():
        with problem(Problem.OWN_STEP, Exception):
            own = step(model, inputs)
            if drop_nothing(model):  # BigBird has made new modules: its first forward chooses its attention
                own = step(model, inputs)
        if own is None:
            raise NotCompared(Problem.NO_LOSS, "")
        if not isfinite(own[0]):
            raise NotCompared(Problem.OWN_STEP, f"its loss is {own[0]}")
        other = step(model, inputs, seed=1)
        draws = other is not None and other[0] != own[0]  # tiles draw other numbers
        with problem(Problem.REFUSED, CkptSurgeryError):
            context = long_context(model, tokens=TOKENS, cut=not draws)
        with problem(Problem.RAISED, Exception):
            ours = step(model, inputs)
        way, why = way_of(context)
        not_cut = {type(block).__name__: cut.reason for block, cut in context.cuts.items() if cut.reason}
        if draws:
            not_cut[name] = "it draws random numbers, and tiles draw others: compared uncut"
        tiled, cut = sum(mlp.reason is None for mlp in context.mlps), sum(c.calls > 0 for c in context.cuts.values())
        context.undo()
        far = farthest(own, ours, step(model, inputs))
    half, own_half = in_half(model, inputs, cut=not draws)  # which changes the gradients, too
    return {
        "way": way,
        "why": why,
        "far": far,
        "tiled": tiled,
        "cut": cut,
        "not_cut": "; ".join(f"{kind}: {reason}" for kind, reason in sorted(not_cut.items())),
        "half": half,
        "own_half": own_half,
    }


def way_of(context: Any) -> tuple[Way, str]:
    """Return how the loss was computed, and why not without logits."""
    if context.made_logits:
        return Way.MADE, f"for {', '.join(context.made_logits)}"
    if context.fused_losses:
        return Way.FUSED, ""
    reasons = sorted({str(head.reason) for head in context.heads if head.reason})
    return Way.ALONE, ", ".join(reasons) or "its loss is no cross-entropy"


def farthest(own: Step, ours: Step | None, undone: Step | None) -> float:
    """Return how far a step is from the model's own: its loss, its gradients, and the gradients after the undo."""
    levels = (*apart(own, ours), apart(own, undone)[1])
    return next((level for level in levels if level != level), max(levels))


def in_half(model: Any, inputs: Mapping[str, Any], *, cut: bool) -> tuple[float, float]:
    """Compare the gradients of a step in bfloat16 with those in float32: after `long_context`, and without it.

    The weights are the same, those in bfloat16. Zeros where the model has no such step of its own.
    """
    from ckpt_surgery.long_sequences.long_context import long_context

    half, inputs_in_half = as_dtype(model, inputs, "bfloat16")
    half.zero_grad(set_to_none=True)
    try:
        wide, inputs_in_float = as_dtype(deepcopy(half), inputs_in_half, "float32")
        exact, own = step(wide, inputs_in_float), step(half, inputs_in_half)
    except Exception:  # some models have no bfloat16, or no copy
        return 0.0, 0.0
    long_context(half, tokens=TOKENS, cut=cut)
    try:
        ours = step(half, inputs_in_half)
    except Exception:
        ours = None
    return distance(exact, ours), distance(exact, own)


def distance(exact: Step | None, other: Step | None) -> float:
    """Return the norm of what all gradients differ by, relative to that of the exact ones."""
    if exact is None or other is None or exact[1].keys() != other[1].keys():
        return float("inf")
    squares = [(float((other[1][n] - g).square().sum()), float(g.square().sum())) for n, g in exact[1].items()]
    apart, whole = map(sum, zip(*squares, strict=True))
    return float((apart / whole) ** 0.5) if whole else float("inf")


def step(model: Any, inputs: Mapping[str, Any], seed: int = 0) -> Step | None:
    """Return the loss and the gradients of one training step; None where there is no loss."""
    from ckpt_surgery.measure.generators import seed_all

    model.zero_grad(set_to_none=True)
    seed_all(seed)
    outputs = model(**inputs)
    loss = outputs.get("loss") if hasattr(outputs, "get") else None
    if loss is None or not loss.requires_grad:
        return None
    loss = loss.sum()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), gradients


def apart(own: Step, ours: Step | None) -> tuple[float, float]:
    """Return how far loss and gradients are apart, relative to the loss and to the largest gradient."""
    if ours is None or own[1].keys() != ours[1].keys():
        return float("inf"), float("inf")
    largest = max((float(gradient.abs().max()) for gradient in own[1].values()), default=0.0) or 1.0
    far = max((float((ours[1][name] - own[1][name]).abs().max()) for name in own[1]), default=0.0)
    return abs(ours[0] - own[0]) / max(abs(own[0]), 1.0), far / largest


def as_dtype(model: Any, inputs: Mapping[str, Any], name: str) -> tuple[Any, dict[str, Any]]:
    """Return the model in training mode and its inputs, in this dtype of torch; nothing is dropped."""
    import torch
    from torch import Tensor

    dtype = getattr(torch, name)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped products of torch have no float64
    drop_nothing(model)
    given = {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    return model.to(dtype).train(), given


def drop_nothing(model: Any) -> bool:
    """Set the rates of dropout of a model to 0, and say whether any was not."""
    from torch import nn

    dropped = False
    for module in model.modules():
        names = ["p"] if isinstance(module, nn.Dropout) else []
        names += [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]
        for name in names:
            dropped = dropped or getattr(module, name) != 0
            setattr(module, name, 0.0)
        config = getattr(module, "config", None)
        for name in [name for name in getattr(config, "__dict__", ()) if "drop" in name]:
            if isinstance(getattr(config, name), float):  # some forwards read their rates there
                setattr(config, name, 0.0)
    return dropped


@contextmanager
def double_precision() -> Iterator[None]:
    """Inside, casts to float32 are casts to float64, and new tensors are in float64, in the whole process."""
    import torch
    from torch import Tensor

    def wide(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    def widely(call: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            return call(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()})

        return called

    functions = [(Tensor, "to"), (Tensor, "type"), (torch.nn.functional, "softmax"), *((torch, m) for m in _MAKERS)]
    default = torch.get_default_dtype()
    with ExitStack() as stack:
        for owner, name in functions:
            stack.enter_context(patch.object(owner, name, widely(getattr(owner, name))))
        stack.enter_context(patch.object(Tensor, "float", Tensor.double))
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float64)
        yield


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page."""
    rows = figures["rows"]
    versions = listed([f"{name} {version}" for name, version in figures["versions"].items()])
    compared = [row for row in rows if row["problem"] is None]
    differing = [row for row in compared if differs(row)]
    largest = max((row["far"] for row in compared if not differs(row)), default=0.0)
    tiled = sum(row["tiled"] > 0 for row in compared)
    whole = sum(row["cut"] > 0 and not row["not_cut"] for row in compared)
    partly = sum(row["cut"] > 0 and bool(row["not_cut"]) for row in compared)
    halves = [row for row in compared if 0 < row["own_half"] < inf]
    farther = [row for row in halves if not row["half"] <= FARTHER * row["own_half"]]
    ratios = sorted(row["half"] / row["own_half"] for row in halves)
    yield "# long_context by class"
    yield (
        f"A training step after `long_context` held against the step of the model's own code, in float64, for tiny "
        f"models with random weights ({versions}): {len(rows)} of {figures['classes']} classes for causal and "
        "conditional generation. `python -m benchmarks.long_context` measures it, and goes on where it stopped."
    )
    yield (
        f"{plural(len(compared), 'class was', 'classes were')} compared: loss, every gradient, and every gradient "
        f"after `undo`. In {len(compared) - len(differing)} of them nothing differs by more than {CLOSE:g}, relative "
        f"to the loss or the largest gradient; by {largest:.0e} at most. In {tiled}, MLPs were tiled. Tiny models say "
        "nothing of memory."
    )
    yield (
        f"In {plural(whole, 'class', 'classes')} all blocks were cut at their attention, in {partly} some, and in "
        f"{len(compared) - whole - partly} none."
    )
    yield (
        f"Steps in bfloat16 of {plural(len(halves), 'class', 'classes')} were held against those in float32, by the "
        f"norm of all gradients. In {len(halves) - len(farther)} of them the step after `long_context` is "
        f"at most {FARTHER - 1:.0%} farther away than the model's own step; "
        f"{f'{ratios[len(ratios) // 2]:.2f}' if ratios else '-'} times as far in the median."
    )
    counts = [[way, str(sum(row["way"] == way for row in compared))] for way in Way]
    yield markdown_table(["of the classes that were compared", "classes"], counts)
    yield _table("Where the step differs", ["by"], [[row["name"], f"{row['far']:.0e}"] for row in differing])
    rounding = [[row["name"], f"{row['half']:.1e}", f"{row['own_half']:.1e}"] for row in farther]
    yield _table("Where bfloat16 rounds more", ["after `long_context`", "its own"], rounding)
    for way in (Way.MADE, Way.ALONE):
        whys = [[row["name"], prose(row["why"])] for row in compared if row["way"] == way]
        yield _table(f"{way[0].upper()}{way[1:]}", ["why"], whys)
    uncut = [row for row in compared if row["not_cut"] or not row["cut"]]
    whys = [[row["name"], prose(row["not_cut"] or "no block ran")] for row in uncut]
    yield _table("Why blocks were not cut", ["why"], whys)
    for kind in Problem:
        whys = [[row["name"], prose(row["why"])] for row in rows if row["problem"] == kind]
        yield _table(f"Not compared: {kind}", ["why"], whys)


def _table(heading: str, heads: list[str], rows: list[list[str]]) -> str:
    cells = [[code(name), *others] for name, *others in rows]
    return titled(f"## {heading}", markdown_table(["class", *heads], cells) if cells else "")


def differs(row: Row) -> bool:
    """Tell whether a step was compared, and was another."""
    return row["problem"] is None and not row["far"] < CLOSE


def row_of(data: Row) -> Row:
    """Return the row of a class for the page."""
    kind = Problem.ENDED if "problem" in data else data.get("kind")
    found = {name: data.get(name, plain) for name, plain in UNCOMPARED.items()}
    return {"name": data["case"], **found, "problem": kind, "why": data.get("problem", found["why"])}


def conclude(rows: Sequence[Row], known: int, page: bool) -> bool:
    """Show the classes, and tell whether a step differs."""
    examined = sorted(map(row_of, rows), key=lambda row: str(row["name"]))
    PAGE.show({"versions": installed("torch", "transformers"), "classes": known, "rows": examined}, page)
    return any(map(differs, examined))


PAGE = Page(
    "long_context",
    "<!-- Written by `python -m docs.generate` from long_context.json: run `python -m benchmarks.long_context`. -->",
    sections,
)
SURVEY = Survey("long_context", __doc__, causal_classes, examine, conclude, MODELS, 300.0, 6 * 2**30, shuffled=False)
if __name__ == "__main__":
    sys.exit(SURVEY.main())
