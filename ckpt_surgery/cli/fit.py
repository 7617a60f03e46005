"""The command `fit`: run a training script, and make it fit into memory when its first batch arrives."""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckpt_surgery.cli.exits import ExitCode, finish
from ckpt_surgery.cli.run import rank_of_process, run_training
from ckpt_surgery.cli.terminal import PATIENCE, check_writable, progress_bar, say, write_document
from ckpt_surgery.errors import OptionError
from ckpt_surgery.optional import need_runtime
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.text import size_in_bytes

if TYPE_CHECKING:
    from torch import nn

    from ckpt_surgery.guarding.takeover import Takeover
    from ckpt_surgery.planning.fit import Fit
    from ckpt_surgery.undo import Undoable

_CARDS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
"""A machine with a GPU has one of these files; torch cannot be asked, because the script must import it first."""


def fit_command(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGUMENTS]", help="The training script and its arguments."),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as after python -m.")] = False,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory budget: 24GB (10**9) or 24GiB (2**30) (default: the card's)."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Plan for this device, as in plan (default: the card here)."),
    ] = None,
    margin: Annotated[
        float, typer.Option(metavar="PERCENT", help="Percentage of the memory left for what is not predicted.")
    ] = 8.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and stop before the first step.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(readable=False, metavar="FILE", help="Also write the plan, for run --plan and CheckpointGuard."),
    ] = None,
    launched: Annotated[str | None, typer.Option("--launched", hidden=True)] = None,
) -> None:
    """Make a training script that runs out of memory fit, at the least extra time.

    The choice is made on shapes when the first batch arrives. Options of this command go before the script. The script
    needs no change. With --dry-run, exits with 1 if nothing fits.
    """

    def body() -> int:
        need_runtime("fit")
        if not arguments:
            raise OptionError("no script to run: give a Python file, or -m and the name of a module")
        if write is not None:
            check_writable(write, "--write")
        if not 0 <= margin < 100:
            raise OptionError(f"--margin is {margin:g}: give a percentage of 0 or more, below 100")
        budget = None if memory is None else size_in_bytes(memory)
        if memory is not None and not budget:
            raise OptionError(f"--memory is {memory!r}: give a size with its unit, such as 24GB")
        if memory is None and device is None and not any(map(os.path.exists, _CARDS)):
            raise OptionError(
                "there is no GPU here to plan for: give --memory 24GB, or --device 4090, before the script"
            )
        card = None if device is None else Device.of(device)
        command = shlex.join([*(["-m"] if module else []), *arguments])
        request = _FitRequest(budget, card, margin / 100, dry_run, write, command)
        options = {"wrap_options": {}, "operation": request.apply, "prove": False}
        script, *rest = arguments
        given = [launched, *rest] if launched else rest
        return run_training(script, given, module, True, options, request.show)

    finish(body)


@dataclass(frozen=True, slots=True)
class _FitRequest:
    """The request on the command line, and what is done with it. `command` is the script with its arguments."""

    memory: int | None
    device: Any
    margin: float
    dry_run: bool
    write: Path | None
    command: str

    def apply(self, model: nn.Module, *, running: bool) -> Undoable:
        """Make a model fit when its first batch arrives: in the forward that is `running`, or in the next one."""
        from ckpt_surgery.planning.first_batch import running_inputs
        from ckpt_surgery.planning.fit import Fit, FitTarget

        progress = partial(progress_bar, after=PATIENCE) if rank_of_process() == "0" else nullcontext
        fit = Fit(model, FitTarget(self.memory, self.device, self.margin), self.report_choice, progress)
        if running and (inputs := running_inputs(model)) is not None:
            fit.begin(model, inputs)
            if fit.applied is not None:
                fit.applied.begin_within(model)
        return fit

    def report_choice(self, fit: Fit) -> None:
        """Print on the first rank what was chosen, write the plan, and end a dry run."""
        if rank_of_process() == "0":
            name = type(fit.model).__name__
            if fit.fitted is None:
                say(f"ckpt_surgery: {name} trains as the script has it, as no step of it was predicted: {fit.problem}")
            else:
                for line in fit.fitted.lines(dry_run=self.dry_run):
                    say(f"ckpt_surgery: {line}")
                if fit.problem:
                    say(f"ckpt_surgery: {name} trains as the script has it, as this failed: {fit.problem}")
                if self.write is not None:
                    write_document(fit.fitted.to_yaml(), self.write)
                    say(f"ckpt_surgery: next time: ckpt_surgery run --plan {self.write} {self.command}")
        if self.dry_run:
            fits = fit.fitted is not None and fit.fitted.fits and not fit.problem
            raise SystemExit(ExitCode.CLEAN if fits else ExitCode.FINDINGS)

    def show(self, takeover: Takeover, code: int) -> int:
        """Print at the end the faults, and on the first rank the memory that steps took; return the exit code."""
        from ckpt_surgery.planning.fit import Fit

        rank = rank_of_process()
        if not takeover.trained and rank == "0":
            say("ckpt_surgery: no model was trained in this process: nothing was done")
        for trained in takeover.trained:
            fit = trained.surgery
            if isinstance(fit, Fit) and rank == "0" and not self.dry_run and (outcome := fit.outcome()):
                say(f"ckpt_surgery: {outcome}")
            for fault in () if trained.report is None or self.dry_run else trained.report.told:
                say(f"ckpt_surgery: rank {rank}: {trained.name}: {fault}")
        return ExitCode.FINDINGS if self.dry_run and not takeover.trained and code == 0 else code
