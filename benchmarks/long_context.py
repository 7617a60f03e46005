"""Is a step after `long_context` the step that the model's own code makes? Every causal and conditional class.

Each class is built tiny, with random weights, in float64 and without dropout, in a process of its own. One training
step of it is held against one after `long_context`: the loss, and each gradient by its largest difference, relative to
the largest gradient. Also the most bytes alive in each step, by the project's meter, and which losses were computed
without logits. Casts to float32 in the model's code are left out in both steps: they would hide what is compared. Then
both steps in bfloat16, with all casts: how far the gradients of each are from those in float32.
Writes a line of json for each class; goes on where it was stopped. Prints a table; with `--page` it also writes the
figures of docs/coverage/long_context.md, and `python -m docs.generate` the page. With `--peak`: the most bytes alive
in a step of a few larger models instead, untouched and after `long_context`. With `--cards`: the tokens that fit on
one card, predicted on shapes; `--page` then writes the figures of the table in docs/how-to/long-context.md.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.figures import lacking, option_parser
from benchmarks.long_context_report import CLOSE, PAGE, Problem, Row, Way, peak_ratio
from benchmarks.long_context_report import rows_of as report_rows
from benchmarks.survey import Survey, installed, rows_of
from ckpt_surgery.text import plural

SECONDS = 300
TOKENS = 256
"""What is said of the length of a batch, so that the tiny MLPs run in several shards."""
PEAK_CLASSES = ("LlamaForCausalLM", "Gemma2ForCausalLM", "Qwen3ForCausalLM", "CohereForCausalLM")
PEAK_SIZES = {
    "vocab_size": 32000,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tokens": 2048,
}
WAYS: Mapping[str, Mapping[str, bool]] = {
    "not cut": {"cut": False},
    "cut": {},
    "cut, tiles on the host": {"host": True},
}
LAYERS = 4
_MAKERS = ("empty", "empty_like", "full", "full_like", "ones", "ones_like", "tensor", "zeros", "zeros_like")
"""The functions of torch that make tensors, in float32 where their callers say so."""
Step = tuple[float, Mapping[str, Any], int]
"""A loss, the gradients by name, and the most bytes alive."""
ENDINGS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a step differs; 2 where it could not run."""
    parser = option_parser("long_context", __doc__)
    parser.add_argument("names", nargs="*", metavar="CLASS", help="only these classes")
    parser.add_argument(
        "--rows", type=Path, default=Path("out/long_context.jsonl"), metavar="FILE", help="one a class"
    )
    parser.add_argument("--peak", action="store_true", help="compare the peaks of larger models instead")
    parser.add_argument(
        "--tokens", metavar="N,M", help="what a token takes of a GPU, predicted between so many thousands of tokens"
    )
    parser.add_argument(
        "--cards", action="store_true", help="how many tokens fit on cards of four sizes, predicted; takes minutes"
    )
    parser.add_argument("--page", action="store_true", help="write the figures of the page from the whole file")
    options = parser.parse_intermixed_args(arguments)
    if lacking("long_context", "torch", "transformers"):
        return 2
    import torch

    from ckpt_surgery.tiny import model_classes

    torch.set_num_threads(1)
    if options.peak:
        for name in options.names or PEAK_CLASSES:
            own, ours = peaks(name)
            print(f"{name}: {own / 2**20:.0f} MiB, {ours / 2**20:.0f} MiB after long_context", flush=True)
        return 0
    if options.tokens:
        shorter, longer = map(int, options.tokens.split(","))
        for way, choice in WAYS.items():
            for line in a_token(way, choice, shorter, longer):
                print(line, flush=True)
        return 0
    if options.cards:
        from benchmarks.long_context_cards import card_rows, cards_table, write_cards

        predicted = list(card_rows())
        print(cards_table(predicted))
        if options.page:
            write_cards(predicted)
        return 0
    every = [name for name in sorted(model_classes()) if name.endswith(ENDINGS)]
    names = options.names or every
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    survey = Survey("long_context", __doc__, lambda: every, examine, seconds=SECONDS, most_bytes=6 * 2**30)
    survey.run(names, options.rows)
    examined = report_rows({**row, "class": row["case"]} for row in rows_of(options.rows))
    rows = [row for row in examined if row.name in names]
    print(*table(rows), sep="\n")
    if options.page:
        figures = {"versions": installed("torch", "transformers"), "classes": len(every)}
        PAGE.write({**figures, "rows": [asdict(row) for row in examined]})
    return int(any(row.differs for row in rows))


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
        own_peak, peak = own[2], ours[2] if ours else 0
        loss, gradients = apart(own, ours)
        result = {
            "loss": loss,
            "gradients": gradients,
            "peak": peak,
            "own_peak": own_peak,
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


def peaks(name: str, **sizes: int) -> tuple[int, int]:
    """Return the most bytes alive in a step of one model, untouched and after `long_context`, with these `sizes`."""
    import torch
    import transformers

    from ckpt_surgery.long_sequences.long_context import long_context

    size = {**PEAK_SIZES, **sizes}
    tokens = size.pop("tokens")
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**size, pad_token_id=0)).train()
    ids = torch.randint(1, size["vocab_size"], (1, tokens))
    own = step(model, {"input_ids": ids, "labels": ids})
    with long_context(model):
        ours = step(model, {"input_ids": ids, "labels": ids})
    if own is None or ours is None:
        raise ValueError(f"{name} computes no loss")
    return own[2], ours[2]


def a_token(way: str, options: Mapping[str, Any], *thousands: int) -> Iterator[str]:
    """Say what four layers of a Llama of 8B with LoRA take at so many thousands of tokens, and a token more."""
    from benchmarks.long_context_cards import LLAMA_LORA, explained, on_shapes

    peaks = []
    for number in thousands:
        told, _ = explained(on_shapes(LLAMA_LORA, number, LAYERS), **options)
        peaks.append(told.peak_bytes)
        products = (told.forward_flops + told.backward_flops) / 1e12
        yield f"{way}, {number}K tokens: {told.peak_bytes / 1e9:.2f} GB, {products:.0f} TFLOP"
    yield f"{way}: {(peaks[-1] - peaks[0]) / (thousands[-1] - thousands[0]) / 1024 / 1e6:.4f} MB a token"


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


def table(rows: Sequence[Row]) -> list[str]:
    """Write how many classes were compared, with the outcomes, and why others were not."""
    compared = [row for row in rows if row.problem is None]
    fused = [row for row in compared if row.way == Way.FUSED]
    lines = [
        f"{plural(len(rows), 'class', 'classes')}: {len(compared)} compared, {len(fused)} of them without logits",
        f"within {CLOSE:g}: {sum(not row.differs for row in compared)}",
    ]
    lines += [f"  {row.name}: {row.far:.1e}" for row in compared if row.differs]
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.way != Way.FUSED:
            names.setdefault(row.problem or f"{row.way}: {row.why}", []).append(row.name)
    lines += [f"{len(each)} x {reason}: {', '.join(each)}" for reason, each in names.items()]
    ratio = peak_ratio(rows)
    return lines if ratio is None else [*lines, f"peak, own / long_context, median of those fused: {ratio:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
