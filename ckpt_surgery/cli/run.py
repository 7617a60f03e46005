"""The command `run`: repair and watch the checkpointing of a training script, and print a table at its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckpt_surgery.cli.exits import finish
from ckpt_surgery.cli.options import choice_of, count
from ckpt_surgery.cli.terminal import check_writable, say
from ckpt_surgery.cli.training_report import show_training
from ckpt_surgery.errors import OptionError
from ckpt_surgery.optional import need_runtime
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.static.options import is_count
from ckpt_surgery.static.plan_file import read_plan
from ckpt_surgery.text import error_line, listed, size_in_bytes

if TYPE_CHECKING:
    from torch import nn

    from ckpt_surgery.guarding.takeover import Operation, Takeover
    from ckpt_surgery.undo import Undoable

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Set by torchrun and its like, Slurm, Open MPI, and MPICH."""
_WHEN = ("first", "always", "never")
_WRAPPED, _KEPT, _RECOMPUTE, _WATCHED = "What is wrapped", "What blocks keep", "Recomputes", "What is watched"


class OnFault(StrEnum):
    """What a fault does while the script runs."""

    COLLECT = "collect"
    WARN = "warn"
    RAISE = "raise"


def _when(text: str) -> str | int:
    """Parse the value of --self-check: a word, or a number of steps."""
    return text if text in _WHEN else count(text)


def run_command(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGUMENTS]", help="The training script and its arguments."),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as after python -m.")] = False,
    wrap: Annotated[
        bool | None,
        typer.Option(
            "--wrap/--no-wrap",
            rich_help_panel=_WRAPPED,
            help="Wrap every model that trains, or none (default: where checkpointing is switched on).",
        ),
    ] = None,
    stacks: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", rich_help_panel=_WRAPPED, help="Only stacks of this name (repeatable)."),
    ] = None,
    blocks: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS", rich_help_panel=_WRAPPED, help="Only blocks of this class (repeatable)."),
    ] = None,
    first: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PATTERN=]N",
            rich_help_panel=_WRAPPED,
            help="Only the first N blocks of each stack, or of those of this name (repeatable).",
        ),
    ] = None,
    every_n: Annotated[
        int | None,
        typer.Option(parser=count, metavar="N", rich_help_panel=_WRAPPED, help="Only every n-th block of each stack."),
    ] = None,
    save: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[BLOCKS=]NAME",
            rich_help_panel=_KEPT,
            help="Keep results of operators: attention, matmul, norm, conv, router, random, collectives, or one such "
            "as aten.mm; matmul:2 is every second (repeatable).",
        ),
    ] = None,
    save_offload: Annotated[
        bool,
        typer.Option(
            "--save-offload", rich_help_panel=_KEPT, help="Keep what --save keeps where the inputs are kept."
        ),
    ] = False,
    offload: Annotated[
        bool,
        typer.Option("--offload", rich_help_panel=_KEPT, help="Keep the blocks' inputs in host memory."),
    ] = False,
    offload_to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", rich_help_panel=_KEPT, help="Keep the blocks' inputs in cpu, disk, or a folder."
        ),
    ] = None,
    offload_pinned: Annotated[
        str | None,
        typer.Option(metavar="SIZE", rich_help_panel=_KEPT, help="Pin at most this much of it: 8GB, 8GiB."),
    ] = None,
    long_context: Annotated[
        bool,
        typer.Option(
            "--long-context", rich_help_panel=_KEPT, help="Offloading, tiled MLPs and a fused loss together."
        ),
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            parser=count, metavar="N", rich_help_panel=_KEPT, help="With --long-context: the tokens of a batch."
        ),
    ] = None,
    host: Annotated[
        bool,
        typer.Option(
            "--host",
            rich_help_panel=_KEPT,
            help="With --long-context: keep queries, keys and values in host memory, too (default: if needed).",
        ),
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            rich_help_panel=_KEPT,
            help="With --long-context: keep this much of the blocks' inputs on the device: 20GB.",
        ),
    ] = None,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto", rich_help_panel=_KEPT, help="Choose the fastest of four ways on the first whole batch."
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=_KEPT, help="With --auto: plan for this device (default: the card here)."
        ),
    ] = None,
    preserve_rng_state: Annotated[
        bool | None,
        typer.Option(
            "--preserve-rng-state/--no-preserve-rng-state",
            rich_help_panel=_RECOMPUTE,
            help="Draw the forward's random numbers again (default: as in the script, else yes).",
            show_default=False,
        ),
    ] = None,
    unsafe_rng_state: Annotated[
        bool,
        typer.Option(
            "--unsafe-rng-state",
            rich_help_panel=_RECOMPUTE,
            help="Like --no-preserve-rng-state, but refuse nothing.",
        ),
    ] = False,
    skip_frozen: Annotated[
        bool | None,
        typer.Option(
            "--skip-frozen/--no-skip-frozen",
            rich_help_panel=_RECOMPUTE,
            help="Skip calls that need no gradient (default).",
            show_default=False,
        ),
    ] = None,
    self_check: Annotated[
        str | None,
        typer.Option(
            parser=_when,
            metavar="WHEN",
            rich_help_panel=_RECOMPUTE,
            help="Compare with the forward: first, always, never, or N for every n-th step.",
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            readable=False, metavar="FILE", rich_help_panel=_KEPT, help="Apply a plan from fit --write or plan --yaml."
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            parser=count, metavar="N", rich_help_panel=_WATCHED, help="Check every n-th step (default: 100)."
        ),
    ] = None,
    prove: Annotated[
        bool | None,
        typer.Option(
            "--prove/--no-prove",
            rich_help_panel=_WATCHED,
            help="Prove each block's gradients (default without --plan).",
            show_default=False,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            parser=count,
            metavar="N",
            rich_help_panel=_WATCHED,
            help="No gradient in N steps is a fault (default: 20).",
        ),
    ] = None,
    on_fault: Annotated[
        OnFault | None,
        typer.Option(
            parser=choice_of(OnFault),
            metavar="HOW",
            rich_help_panel=_WATCHED,
            help="collect (default), warn at once, or raise.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            rich_help_panel=_WATCHED,
            help="Write what was seen: .json, .html, or text.",
        ),
    ] = None,
    launched: Annotated[str | None, typer.Option("--launched", hidden=True)] = None,
) -> None:
    """Run a training script with gradient checkpointing that works, and report at the end what was done.

    Options of this command go before the script. The script needs no change.
    """

    def body() -> int:
        need_runtime("run")
        if not arguments:
            raise OptionError("no script to run: give a Python file, or -m and the name of a module")
        if report is not None:
            check_writable(report, "--report")
        if offload and offload_to is not None:
            raise OptionError("--offload is --offload-to cpu: give one of them")
        wrapping = {
            "offload": offload_to if offload_to is not None else "cpu" if offload else None,
            "offload_pinned": _bytes("--offload-pinned", offload_pinned),
            "preserve_rng_state": "unsafe" if unsafe_rng_state else preserve_rng_state,
            "skip_frozen": skip_frozen,
            "save": _saved_names(save),
            "save_offload": save_offload or None,
            "stacks": stacks,
            "blocks": blocks,
            "first": _first_blocks(first),
            "every_n": every_n,
            "self_check": self_check,
        }
        operation: Operation | None = None
        if long_context:
            others = [*given(wrapping), *(["auto"] if auto else [])]
            _refuse_beside("--long-context wraps blocks in its own way", wrap, others)
            context = {"tokens": tokens, "host": host or None, "keep": _bytes("--keep", keep) or 0}
            operation = partial(_long_context, context)
        elif alone := [f"--{name}" for name, value in (("tokens", tokens), ("host", host), ("keep", keep)) if value]:
            raise OptionError(f"{alone[0]} is for --long-context: give both, or neither")
        if auto:
            others = [name for name in ("offload", "save", "save_offload") if wrapping[name] is not None]
            _refuse_beside("--auto chooses what blocks keep, and where", wrap, others)
            operation = partial(_fastest, None if device is None else Device.of(device), given(wrapping))
        elif device is not None:
            raise OptionError("--device is for --auto: give both, or neither")
        if plan is not None:
            others = [*given(wrapping), *(["auto"] if auto else []), *(["long_context"] if long_context else [])]
            _refuse_beside("--plan says all that is done to a model", wrap, others)
            operation = _planned(plan)
        proves = plan is None if prove is None else prove  # a plan leaves no memory to run one more block
        guarding = {"every": every, "prove": proves, "patience": patience, "on_fault": on_fault and on_fault.value}
        command = [*(["-m"] if module else []), *arguments]

        def show(takeover: Takeover, code: int) -> int:
            show_training(takeover, report, command, rank_of_process(), broke_off=code != 0)
            return code

        wrap_all = True if long_context or plan is not None else wrap
        options = {"wrap_options": given(wrapping), "operation": operation, **given(guarding)}
        script, *rest = arguments
        return run_training(script, [launched, *rest] if launched else rest, module, wrap_all, options, show)

    finish(body)


def run_training(
    script: str,
    arguments: list[str],
    module: bool,
    wrap: bool | None,
    options: Mapping[str, Any],
    show: Callable[[Takeover, int], int],
) -> int:
    """Run a script with its arguments, and return its exit code.

    Once the script has imported torch, a `Takeover` of its models is installed. At the end `show` gets it and the exit
    code, and returns the final code. A signal that ended the script ends this process, too.
    """
    from ckpt_surgery.guarding.after_import import after_import
    from ckpt_surgery.guarding.run_script import run_module, run_script

    process, takeovers = os.getpid(), list["Takeover"]()

    def install() -> None:
        if os.getpid() != process:
            return
        try:
            from ckpt_surgery.guarding.guard import GuardOptions
            from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions
        except Exception as error:  # a torch that lacks something for us may still do for the script
            _tell(f"the script runs unwrapped and unwatched, because run cannot be imported: {error_line(error)}")
            return
        guarding = {"on_fault": "collect", **options}
        wrapping = {name: guarding.pop(name) for name in ("wrap_options", "operation")}
        takeover = Takeover(TakeoverOptions(wrap, **wrapping, guard_options=GuardOptions(**guarding)), _tell)
        takeover.install()
        takeovers.append(takeover)

    def watch_switches() -> None:
        for takeover in takeovers if os.getpid() == process else ():
            with suppress(Exception):  # this release has no such method
                takeover.switches.watch()

    after_import("torch", install)
    after_import("transformers.modeling_utils", watch_switches)

    def explain(error: BaseException) -> None:
        for takeover in takeovers:
            takeover.explain(error)

    code = (run_module if module else run_script)(script, arguments, explain)
    for takeover in takeovers if os.getpid() == process else ():  # a process that the script forked comes here too
        code = show(takeover, code)
        takeover.remove()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _long_context(options: Mapping[str, Any], model: nn.Module, *, running: bool) -> Undoable:
    """Apply --long-context to a model that trains."""
    from ckpt_surgery.long_sequences.long_context import long_context

    context = long_context(model, **options)
    if running:
        context.begin_within()
    return context


def _fastest(device: Device | None, options: Mapping[str, Any], model: nn.Module, *, running: bool) -> Undoable:
    """Apply --auto to a model that trains. A forward that is `running` is too late: the next one decides."""
    from ckpt_surgery.guarding.asked_options import wrap_as_asked
    from ckpt_surgery.planning.fastest import FastestWrap

    is_first_rank = rank_of_process() == "0"
    return FastestWrap(wrap_as_asked(model, **options), device, lambda words: _tell(words) if is_first_rank else None)


def _planned(path: Path) -> Operation:
    """Return the function that applies --plan. The file is read at once: OptionError comes before the script runs."""
    calls = read_plan(path)

    def apply(model: nn.Module, *, running: bool) -> Undoable:
        from ckpt_surgery.long_sequences.calls import apply_plan

        return apply_plan(calls, model, running=running)

    return apply


def _refuse_beside(why: str, wrap: bool | None, options: Iterable[str]) -> None:
    """Raise OptionError if an option that wraps by itself was given together with other wrapping options."""
    names = ["--no-wrap"] if wrap is False else []
    names += ["--" + name.replace("_", "-") for name in options]
    if names:
        raise OptionError(f"{why}: leave out {listed(names)}")


def _bytes(option: str, text: str | None) -> int | None:
    """Parse the size that an option gives, in bytes. Raises OptionError."""
    if text is not None and (count := size_in_bytes(text)) is None:
        raise OptionError(f"{option} is {text!r}: give a size with its unit, such as 8GB")
    return None if text is None else count


def _first_blocks(texts: Sequence[str] | None) -> int | dict[str, int] | None:
    """Parse --first: one number of blocks, or numbers by stack. Raises OptionError."""
    if not texts:
        return None
    numbers: dict[str, int] = {}
    for text in texts:
        pattern, equals, number = text.rpartition("=")
        if not is_count(int(number) if number.isdecimal() else 0) or (equals and not pattern):
            raise OptionError(
                f"--first is {text!r}: give a number, 1 or more, or a stack and a number: model.layers=20"
            )
        numbers[pattern] = int(number)
    if "" not in numbers:
        return numbers
    if len(texts) > 1:
        raise OptionError("--first names a number for every stack, and more: give one number, or a number by stack")
    return numbers[""]


def _saved_names(texts: Sequence[str] | None) -> list[str] | dict[str, list[str]] | None:
    """Parse --save: names of operators, or names by blocks. Raises OptionError."""
    names: dict[str, list[str]] = {}
    for text in texts or ():
        pattern, equals, name = text.rpartition("=")
        if equals and not (pattern and name):
            raise OptionError(f"--save is {text!r}: give a name, or blocks and a name: model.layers=attention")
        names.setdefault(pattern, []).append(name)
    if "" in names and len(names) > 1:
        raise OptionError("--save names operators for every block, and for some: give each name with its blocks")
    return names.get("", names) or None


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def rank_of_process() -> str:
    """Return the rank of this process as its launcher set it; "0" without a launcher."""
    return next((rank for name in _RANK_VARIABLES if (rank := os.environ.get(name))), "0")


def _tell(message: str) -> None:
    say(f"ckpt_surgery: {message}")
