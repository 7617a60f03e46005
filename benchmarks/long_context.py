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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import Any
from unittest.mock import patch

from benchmarks.survey import MODELS, Page, Survey, installed
from ckpt_surgery.text import code, listed, markdown_table, plural, prose, titled

TOKENS = 256
"""What is said of the length of a batch, so that the tiny MLPs run in several shards."""
CLOSE = 1e-12
FARTHER = 1.1
"""How much farther from float32 the gradients of a step in bfloat16 may be than those of the model's own step."""
_MAKERS = ("empty", "empty_like", "full", "full_like", "ones", "ones_like", "tensor", "zeros", "zeros_like")
"""The functions of torch that make tensors, in float32 where their callers say so."""
Step = tuple[float, Mapping[str, Any], int]
"""A loss, the gradients by name, and the most bytes alive."""
ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


def causal_classes() -> list[str]:
    """Return the classes for causal and conditional generation."""
    from ckpt_surgery.tiny import model_classes

    return [name for name in sorted(model_classes()) if name.endswith(ENDINGS)]


def examine(name: str) -> Mapping[str, Any]:
    """Return what `long_context` does to one class. `kind` and `problem` say why there is no comparison."""
    from ckpt_surgery.errors import CkptSurgeryError
    from ckpt_surgery.long_sequences.long_context import long_context
    from ckpt_surgery.tiny import model_classes, tiny_model

    try:
        built = tiny_model(model_classes()[name].load())
    except CkptSurgeryError as error:
        return {"kind": Problem.NOT_BUILT, "problem": str(error)}
    model, inputs = as_dtype(built.model, built.inputs, "float64")
    with double_precision(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            own = step(model, inputs)
            if drop_nothing(model):  # BigBird has made new modules: its first forward chooses its attention
                own = step(model, inputs)
        except Exception as error:
            return {"kind": Problem.OWN_STEP, "problem": f"{type(error).__name__}: {error}"}
        if own is None:
            return {"kind": Problem.NO_LOSS, "problem": ""}
        if not isfinite(own[0]):
            return {"kind": Problem.OWN_STEP, "problem": f"its loss is {own[0]}"}
        other = step(model, inputs, seed=1)
        draws = other is not None and other[0] != own[0]  # tiles draw other numbers
        try:
            context = long_context(model, tokens=TOKENS, cut=not draws)
        except CkptSurgeryError as error:
            return {"kind": Problem.REFUSED, "problem": str(error)}
        try:
            ours = step(model, inputs)
        except Exception as error:
            return {"kind": Problem.RAISED, "problem": f"{type(error).__name__}: {error}"}
        loss, gradients = apart(own, ours)
        result = {
            "loss": loss,
            "gradients": gradients,
            "fused": context.fused_losses,
            "made": context.made_logits,
            "heads": {head.owner: head.reason for head in context.heads},
            "tiled": sum(mlp.reason is None for mlp in context.mlps),
            "cut": sum(cut.calls > 0 for cut in context.cuts.values()),
            "not_cut": {type(block).__name__: cut.reason for block, cut in context.cuts.items() if cut.reason}
            | ({name: "it draws random numbers, and tiles draw others: compared uncut"} if draws else {}),
            "not_tiled": {type(mlp.module).__name__: mlp.reason for mlp in context.mlps if mlp.reason},
        }
        context.undo()
        undone = apart(own, step(model, inputs))[1]
    half = in_half(model, inputs, cut=not draws)  # which changes the gradients, too
    return {**result, "undone": undone, "half": half[0], "own_half": half[1]}


def in_half(model: Any, inputs: Mapping[str, Any], *, cut: bool) -> tuple[float, float]:
    """Compare the gradients of a step in bfloat16 with those in float32: after `long_context`, and without it.

    The weights are the same, those in bfloat16. Zeros where the model has no such step of its own.
    """
    from ckpt_surgery.long_sequences.long_context import long_context

    half, inputs_in_half = as_dtype(model, inputs, "bfloat16")
    half.zero_grad(set_to_none=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
    """Return the loss, the gradients and the most bytes alive of one training step; None where there is no loss."""

    from ckpt_surgery.measure.generators import seed_all
    from ckpt_surgery.measure.meter import Meter

    model.zero_grad(set_to_none=True)
    seed_all(seed)
    with Meter() as meter:
        outputs = model(**inputs)
        loss = outputs.get("loss") if hasattr(outputs, "get") else None
        if loss is None or not loss.requires_grad:
            return None
        del outputs
        loss = loss.sum()
        meter.start_backward(loss)
        loss.backward()
        peak = max(held for _, held in meter.timeline().points)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), gradients, peak


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


@dataclass(frozen=True, slots=True)
class Row:
    """One class. `far` is the largest relative difference in the loss, the gradients, and the gradients after `undo`.

    `half` and `own_half` say how far the gradients in bfloat16 are from those in float32, relative to the norm of
    those, after `long_context` and without it: 0 where there is no such step.

    `cut` counts the blocks cut at their attention; `not_cut` says why others were not, with their classes. With a
    `problem` it was not compared. `why` says of it what was said, and of a way other than `FUSED` the reason.
    """

    name: str
    problem: str | None
    way: str | None
    far: float
    why: str
    tiled: int = 0
    cut: int = 0
    not_cut: str = ""
    half: float = 0.0
    own_half: float = 0.0

    @property
    def farther(self) -> bool:
        """Whether it rounds worse in bfloat16 than the model's own step."""
        return not self.half <= FARTHER * self.own_half

    @property
    def differs(self) -> bool:
        """Whether the step was another."""
        return self.problem is None and not self.far < CLOSE


def row_of(data: Mapping[str, Any]) -> Row:
    """Read what was found of a class."""
    if "loss" not in data:
        problem = Problem(data["kind"]) if "kind" in data else Problem.ENDED
        return Row(data["case"], problem, None, 0.0, str(data["problem"]))
    levels = [float(data[level]) for level in ("loss", "gradients", "undone")]
    far = next((level for level in levels if level != level), max(levels))
    sizes = {name: data[name] for name in ("tiled", "cut")}
    sizes |= {name: data.get(name, 0.0) for name in ("half", "own_half")}
    sizes["not_cut"] = "; ".join(f"{name}: {reason}" for name, reason in sorted(data["not_cut"].items()))
    if data["made"]:
        return Row(data["case"], None, Way.MADE, far, f"for {', '.join(data['made'])}", **sizes)
    if data["fused"]:
        return Row(data["case"], None, Way.FUSED, far, "", **sizes)
    reasons = sorted({str(reason) for reason in data["heads"].values() if reason})
    return Row(data["case"], None, Way.ALONE, far, ", ".join(reasons) or "its loss is no cross-entropy", **sizes)


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page."""
    rows = [Row(**row) for row in figures["rows"]]
    versions = listed([f"{name} {version}" for name, version in figures["versions"].items()])
    compared = [row for row in rows if row.problem is None]
    differing = [row for row in compared if row.differs]
    largest = max((row.far for row in compared if not row.differs), default=0.0)
    tiled = sum(row.tiled > 0 for row in compared)
    whole = sum(row.cut > 0 and not row.not_cut for row in compared)
    partly = sum(row.cut > 0 and bool(row.not_cut) for row in compared)
    halves = [row for row in compared if 0 < row.own_half < inf]
    ratios = sorted(row.half / row.own_half for row in halves)
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
        f"norm of all gradients. In {sum(not row.farther for row in halves)} of them the step after `long_context` is "
        f"at most {FARTHER - 1:.0%} farther away than the model's own step; "
        f"{f'{ratios[len(ratios) // 2]:.2f}' if ratios else '-'} times as far in the median."
    )
    counts = [[way, str(sum(row.way == way for row in compared))] for way in Way]
    yield markdown_table(["of the classes that were compared", "classes"], counts)
    yield _table("## Where the step differs", ["class", "by"], [[code(r.name), f"{r.far:.0e}"] for r in differing])
    farther = [[code(row.name), f"{row.half:.1e}", f"{row.own_half:.1e}"] for row in halves if row.farther]
    yield _table("## Where bfloat16 rounds more", ["class", "after `long_context`", "its own"], farther)
    for way in (Way.MADE, Way.ALONE):
        yield _whys(f"{way[0].upper()}{way[1:]}", [(r.name, r.why) for r in compared if r.way == way])
    uncut = [(row.name, row.not_cut or "no block ran") for row in compared if row.not_cut or not row.cut]
    yield _whys("Why blocks were not cut", uncut)
    for problem in Problem:
        yield _whys(f"Not compared: {problem}", [(r.name, r.why) for r in rows if r.problem == problem])


def _table(heading: str, heads: list[str], cells: list[list[str]]) -> str:
    return titled(heading, markdown_table(heads, cells) if cells else "")


def _whys(heading: str, whys: Iterable[tuple[str, str]]) -> str:
    return _table(f"## {heading}", ["class", "why"], [[code(name), prose(why)] for name, why in whys])


def conclude(rows: Sequence[Mapping[str, Any]], known: int, page: bool) -> bool:
    """Show the classes, and tell whether a step differs."""
    examined = sorted(map(row_of, rows), key=lambda row: row.name)
    figures = {"versions": installed("torch", "transformers"), "classes": known}
    PAGE.show({**figures, "rows": [asdict(row) for row in examined]}, page)
    return any(row.differs for row in examined)


PAGE = Page(
    "long_context",
    "<!-- Written by `python -m docs.generate` from long_context.json: run `python -m benchmarks.long_context`. -->",
    sections,
)
SURVEY = Survey("long_context", __doc__, causal_classes, examine, conclude, MODELS, 300.0, 6 * 2**30, shuffled=False)
if __name__ == "__main__":
    sys.exit(SURVEY.main())
