"""The command `explain`: read the options, run a step of the model on shapes, print what it keeps.

torch and transformers are imported only once the options are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt_surgery.cli.exits import ExitCode, finish, termination_raises
from ckpt_surgery.cli.options import choice_names, choice_of, count
from ckpt_surgery.cli.terminal import check_writable, progress_bar, say, write_document, write_report
from ckpt_surgery.optional import need_runtime
from ckpt_surgery.text import percent, plural, size, text_table

if TYPE_CHECKING:
    from ckpt_surgery.planning.explanation import Explanation
    from ckpt_surgery.planning.figures import Holder
    from ckpt_surgery.planning.target import ReleasedModel
    from ckpt_surgery.static.results import Progress

_MOST_HOLDERS = 8


class WeightDtype(StrEnum):
    """The dtype of the weights."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class ExplainedSteps(StrEnum):
    """Which steps are explained."""

    OFF = "off"
    ON = "on"
    BOTH = "both"


class CountedOptimizer(StrEnum):
    """Whose state is counted."""

    ADAMW = "adamw"
    NONE = "none"


def explain_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A config.json or its folder, a class, a model type (llama), or package.module:factory.",
        ),
    ],
    tokens: Annotated[
        int | None,
        typer.Option(
            parser=count, metavar="N", help="Tokens of a text (default: 2048, or the model's positions if fewer)."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(parser=count, metavar="N", help="Samples in a batch (default: 1).")
    ] = None,
    dtype: Annotated[
        WeightDtype,
        typer.Option(
            parser=choice_of(WeightDtype), metavar=choice_names(WeightDtype), help="The dtype of the weights."
        ),
    ] = WeightDtype.BF16,
    checkpointing: Annotated[
        ExplainedSteps,
        typer.Option(
            parser=choice_of(ExplainedSteps), metavar=choice_names(ExplainedSteps), help="Which steps to explain."
        ),
    ] = ExplainedSteps.BOTH,
    optimizer: Annotated[
        CountedOptimizer,
        typer.Option(
            parser=choice_of(CountedOptimizer), metavar=choice_names(CountedOptimizer), help="Whose state to count."
        ),
    ] = CountedOptimizer.ADAMW,
    json: Annotated[
        Path | None, typer.Option("--json", readable=False, metavar="FILE", help="Also write all of it as JSON.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code in the model's folder.")
    ] = False,
) -> None:
    """Say what a training step of a model will keep in memory, and where.

    The step runs on shapes at the model's released size: no weights, no GPU, nothing is downloaded.
    """

    def body() -> int:
        if json is not None:
            check_writable(json)
        need_runtime("explain")
        samples = batch or 1
        with termination_raises(), progress_bar() as progress, _quiet():
            released, explanations = _explained(
                model, tokens, samples, dtype, checkpointing, optimizer, trust_remote_code, progress
            )
        write_report(_lines(released, explanations, samples, dtype, optimizer), None)
        if json is not None:
            write_document(_document(explanations), json)
        return ExitCode.CLEAN

    finish(body, lambda: "nothing was written")


def _explained(
    name: str,
    tokens: int | None,
    batch: int,
    dtype: WeightDtype,
    checkpointing: ExplainedSteps,
    optimizer: CountedOptimizer,
    trust_remote_code: bool,
    progress: Progress | None,
) -> tuple[ReleasedModel, dict[ExplainedSteps, Explanation]]:
    """The model and its explanation for each of the steps that were asked for."""

    def at(step: str, done: int) -> None:
        if progress is not None:
            progress(step, done, total)

    total = 3 if checkpointing is ExplainedSteps.BOTH else 2
    at("importing", 0)
    from ckpt_surgery.errors import SurgeryError
    from ckpt_surgery.planning.target import DTYPES, adamw_bytes, explain_released, main_class, released
    from ckpt_surgery.runtime.wrap import wrap_blocks
    from ckpt_surgery.survey.resolve import resolve

    target = main_class(resolve([name], trust_remote_code=trust_remote_code, variants=False))
    at("building the model", 0)
    found = released(target, tokens=tokens, batch=batch, dtype=DTYPES[dtype])
    state = adamw_bytes(found.model) if optimizer is CountedOptimizer.ADAMW else 0
    explanations = {}
    if checkpointing is not ExplainedSteps.ON:
        at("a step", 1)
        explanations[ExplainedSteps.OFF] = explain_released(found, state)
    if checkpointing is not ExplainedSteps.OFF:
        at("a checkpointed step", total - 1)
        try:
            wrap_blocks(found.model, self_check="never")
        except SurgeryError as error:
            if not explanations:
                raise
            say(f"ckpt_surgery: with checkpointing off alone: {error}")
        else:
            explanations[ExplainedSteps.ON] = explain_released(found, state)
    return found, explanations


def _lines(
    released: ReleasedModel,
    explanations: dict[ExplainedSteps, Explanation],
    batch: int,
    dtype: WeightDtype,
    optimizer: CountedOptimizer,
) -> list[str]:
    any_one = next(iter(explanations.values()))
    text = f" of {plural(released.tokens, 'token')}" if released.tokens else ""
    state = f"optimizer ({optimizer})"
    rows: list[tuple[str, list[str]]] = [
        ("parameters", [size(one.parameter_bytes) for one in explanations.values()]),
        ("gradients", [size(one.gradient_bytes) for one in explanations.values()]),
        (state, [size(one.optimizer_bytes) for one in explanations.values()]),
        ("kept for the backward", [size(one.kept_bytes) for one in explanations.values()]),
        ("peak", [size(one.peak_bytes) for one in explanations.values()]),
        ("peak in", [_where(one) for one in explanations.values()]),
    ]
    lines = [
        f"{any_one.model}: {plural(batch, 'sample')}{text}, {dtype}, attention: {released.attention}, "
        f"{plural(any_one.blocks, 'block')}",
        *text_table(["", *(f"checkpointing {when}" for when in explanations)], [[name, *row] for name, row in rows]),
    ]
    for when, one in explanations.items():
        lines += ["", f"Kept with checkpointing {when}:", *_holder_lines(one.holders, one.kept_bytes)]
    if drawn := max(one.drawn for one in explanations.values()):
        lines += ["", f"{plural(drawn, 'operator')} read what weights decide and got random values: sizes may differ."]
    return lines


def _holder_lines(holders: Sequence[Holder], total: int) -> list[str]:
    rows = [
        [
            size(holder.bytes),
            percent(holder.bytes / total if total else None),
            holder.module or "loss",
            f"{holder.operator.removeprefix('aten.')} {holder.line}".strip(),
            f"{holder.count} x {holder.dtype} {'x'.join(map(str, holder.shape))}",
        ]
        for holder in holders[:_MOST_HOLDERS]
    ]
    return text_table(["bytes", "share", "module", "made by", "tensors"], rows, right="bytes")


def _where(explanation: Explanation) -> str:
    peak = explanation.peak
    return " ".join(filter(None, [f"the {peak.phase},", peak.module or "loss", peak.line]))


def _document(explanations: dict[ExplainedSteps, Explanation]) -> str:
    documents = [f'"checkpointing_{when}": {one.to_json()}' for when, one in explanations.items()]
    return f"{{{', '.join(documents)}}}\n"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings of the libraries away from the report: nothing is trained."""
    import warnings

    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
