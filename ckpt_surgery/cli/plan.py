"""The command `plan`: read the options, choose what to checkpoint within a budget, print the plan and its front.

torch and transformers are imported only once the options are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt_surgery.cli.exits import ExitCode, finish, termination_raises
from ckpt_surgery.cli.options import choice_names, choice_of
from ckpt_surgery.cli.released import (
    Batch,
    CountedOptimizer,
    DeviceName,
    Dtype,
    FourBits,
    Fsdp,
    Lora,
    Model,
    Ranks,
    Tokens,
    TrustRemoteCode,
    WeightDtype,
    Zero,
    check_adapters,
    check_own_inputs,
    quiet,
    sharding_of,
    target_named,
)
from ckpt_surgery.cli.terminal import PATIENCE, check_writable, progress_bar, say, write_document, write_report
from ckpt_surgery.errors import OptionError
from ckpt_surgery.optional import load_runtime
from ckpt_surgery.planning.training import Optimizer
from ckpt_surgery.text import LINE, plural, size, text_table, wrapped

if TYPE_CHECKING:
    from ckpt_surgery.planning.plan import Plan

DEVICE = "H100"
"""The device whose time is estimated if none is named."""
_MOST_ROWS = 12


class Maximized(StrEnum):
    """The size to maximize."""

    BATCH = "batch"
    TOKENS = "tokens"


def plan_command(
    model: Model,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory budget: 80GB (10**9) or 80GiB (2**30) (default: 92 % of the --device's).",
        ),
    ] = None,
    tokens: Tokens = None,
    batch: Batch = None,
    dtype: Dtype = WeightDtype.BF16,
    lora: Lora = None,
    four_bits: FourBits = False,
    optimizer: CountedOptimizer = Optimizer.ADAMW,
    ranks: Ranks = None,
    fsdp: Fsdp = False,
    zero: Zero = None,
    device: DeviceName = None,
    offload: Annotated[
        bool, typer.Option("--offload/--no-offload", help="Whether what blocks keep may move to host memory.")
    ] = True,
    changes: Annotated[
        bool, typer.Option("--changes/--no-changes", help="Whether the loss may be fused and MLPs tiled.")
    ] = True,
    save: Annotated[
        bool, typer.Option("--save/--no-save", help="Whether results of operators may be kept instead of recomputed.")
    ] = True,
    maximize: Annotated[
        Maximized | None,
        typer.Option(
            parser=choice_of(Maximized),
            metavar=choice_names(Maximized),
            help="Find the largest batch, or the longest sequence, that fits.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", readable=False, metavar="FILE", help="Also write an HTML page with the trade-offs."),
    ] = None,
    yaml: Annotated[
        Path | None, typer.Option("--yaml", readable=False, metavar="FILE", help="Also write the calls as YAML.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Choose what to checkpoint so that a step fits a memory budget at the least extra time.

    Steps run on shapes at the model's released size: no weights, no GPU. Only the config.json of a model on the Hub is
    downloaded. Exits with 1 if nothing fits.
    """

    def body() -> int:
        for option, place in (("--html", html), ("--yaml", yaml)):
            if place is not None:
                check_writable(place, option)
        check_adapters(lora, four_bits=four_bits)
        if memory is None and device is None:
            raise OptionError("say what a step may take: --memory SIZE, or the card with --device")
        with termination_raises(), progress_bar(after=PATIENCE) as progress:
            show = progress or (lambda *_: None)
            show("importing", 0, 0)
            load_runtime("plan")
            with quiet():
                from ckpt_surgery.errors import DoesNotFitError
                from ckpt_surgery.planning.largest import largest_sizes
                from ckpt_surgery.planning.lora import add_lora
                from ckpt_surgery.planning.plan import memory_bytes
                from ckpt_surgery.planning.target import DTYPES, ReleasedModel
                from ckpt_surgery.planning.training import TrainingSetup
                from ckpt_surgery.survey.target import TargetKind

                training = TrainingSetup.of(
                    optimizer, ranks or 1, sharding_of(fsdp=fsdp, zero=zero), DEVICE if device is None else device
                )
                card = training.device
                budget = card.room if card is not None and memory is None else memory_bytes(memory or "")
                target = target_named(model, trust_remote_code=trust_remote_code)
                show("building the model", 0, 0)
                if maximize is not None and target.kind is TargetKind.FACTORY:
                    raise OptionError(
                        f"--maximize makes inputs of other sizes, and those of {target.argument} are its own"
                    )
                found = ReleasedModel.of(target, tokens=tokens, batch=batch or 1, dtype=DTYPES[dtype])
                check_own_inputs(found, tokens, batch)
                if lora:
                    add_lora(found.model, lora, found.shapes, four_bits=four_bits)
                head: list[str] = []
                try:
                    if maximize is not None:
                        show("searching the largest size", 0, 0)
                        largest = largest_sizes(
                            found,
                            batch or 1,
                            budget,
                            training,
                            is_batch=maximize is Maximized.BATCH,
                            offload=offload,
                            changes=changes,
                        )
                        found = found.resized(*largest)
                        text = f" of {plural(largest[1], 'token')}" if largest[1] else ""
                        head = [f"Largest {maximize}: {plural(largest[0], 'sample')}{text}."]
                    made = found.planned(
                        budget,
                        training=training,
                        offload=offload,
                        changes=changes,
                        save=save,
                        begin=lambda number: show("metering steps", number, 0),
                    )
                except DoesNotFitError as error:
                    say(f"ckpt_surgery: {error}")
                    return ExitCode.FINDINGS
        write_report(head + _lines(made, found.assumptions, lora=lora is not None, assumed=device is None), None)
        if html is not None:
            write_document(made.to_html(), html)
        if yaml is not None:
            write_document(made.to_yaml(), yaml)
        return ExitCode.CLEAN

    finish(body, lambda: "nothing was written")


def _lines(made: Plan, assumptions: Sequence[str], *, lora: bool, assumed: bool) -> list[str]:
    head = wrapped(made.answer, LINE)
    head += [line for sentence in assumptions for line in wrapped(sentence, LINE)]
    if not made.is_needed:
        return head
    rows = [
        [
            "->" if row == made.chosen else "",
            row.choice.blocks_name,
            ", ".join(row.choice.beside),
            size(row.kept_bytes),
            f"{'' if row.measured else '~ '}{size(row.peak_bytes)}",
            made.extra_time(row),
        ]
        for row in made.some_of_front(_MOST_ROWS)
    ]
    return [
        *head,
        "",
        *(["# before get_peft_model(model, ...), as the adapters rename its modules"] if lora else []),
        *made.code.splitlines(),
        "",
        *text_table(["", "checkpointed", "also", "kept", "peak", "extra time"], rows),
        f"Time: what one step computes and moves, at the peak rates of {made.device.name} ({made.device.source})"
        f"{', as --device names no card' if assumed else ''}; ~ is an estimate between steps that were metered.",
        *(f"{name} is not available here: {why}" for name, why in made.unavailable.items()),
        "Not counted: workspace of kernels but cuBLAS's and flash attention's, fragments, the CUDA context.",
    ]
