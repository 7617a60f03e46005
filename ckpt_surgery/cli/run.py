"""The command `run`: a training script with its checkpointing repaired and watched, and a table at its end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckpt_surgery.cli.exits import finish
from ckpt_surgery.cli.options import count
from ckpt_surgery.cli.terminal import check_writable, say, write_document
from ckpt_surgery.errors import OptionError
from ckpt_surgery.optional import need_runtime
from ckpt_surgery.text import plural

if TYPE_CHECKING:
    from ckpt_surgery.guarding.takeover import Takeover, Trained

EVERY = 100


def run_command(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCRIPT] [ARGUMENTS]", help="The training script, and what it is given."),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as after python -m.")] = False,
    wrap: Annotated[
        bool | None,
        typer.Option(
            "--wrap/--no-wrap",
            help="Wrap every model that trains, or none (default: those that have checkpointing switched on).",
        ),
    ] = None,
    reentrant: Annotated[
        bool | None,
        typer.Option("--reentrant/--non-reentrant", help="The mode (default: the script's own).", show_default=False),
    ] = None,
    offload: Annotated[bool, typer.Option("--offload", help="Keep the blocks' inputs in host memory.")] = False,
    save: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Keep the results of these operators in every block: attention, matmul:2, router, aten.mm, ...; "
            "can be given again.",
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(parser=count, metavar="N", help="Check every n-th step after the first three (default: 100)."),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove/--no-prove", help="Hold each block's gradients against those of the block alone.")
    ] = True,
    report: Annotated[
        Path | None,
        typer.Option(readable=False, metavar="FILE", help="Write what was seen to this file: .json, .html, or text."),
    ] = None,
) -> None:
    """Run a training script with gradient checkpointing that works, and say at its end what it did.

    Options of this command stand before the script. The script needs no change.
    """

    def body() -> int:
        need_runtime("run")
        if not arguments:
            raise OptionError("no script to run: give a Python file, or -m and the name of a module")
        if report is not None:
            check_writable(report)
        options: dict[str, Any] = {} if reentrant is None else {"use_reentrant": reentrant}
        options |= {"offload": "cpu"} if offload else {}
        options |= {"use_reentrant": False, **options, "save": save} if save else {}
        takeovers: list[Takeover] = []
        process = os.getpid()
        code = _run(arguments, module, wrap, options, every or EVERY, prove, takeovers)
        for takeover in takeovers if os.getpid() == process else ():  # a fork of the script may come here, too
            _show(takeover, report)
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        return code

    finish(body)


def _run(
    arguments: list[str],
    module: bool,
    wrap: bool | None,
    wrap_options: dict[str, Any],
    every: int,
    prove: bool,
    takeovers: list[Takeover],
) -> int:
    """Run the script; the takeover of its models is made once it has imported torch, with the script's environment."""
    from ckpt_surgery.guarding.after_import import after_import
    from ckpt_surgery.guarding.script import run_module, run_script

    process = os.getpid()

    def install() -> None:
        from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions, Wrap

        if os.getpid() != process:
            return
        which = Wrap.ASKED if wrap is None else Wrap.ALWAYS if wrap else Wrap.NEVER
        takeover = Takeover(TakeoverOptions(which, wrap_options, every, prove), _tell)
        takeover.install()
        takeovers.append(takeover)

    after_import("torch", install)
    return (run_module if module else run_script)(arguments[0], arguments[1:])


def _show(takeover: Takeover, path: Path | None) -> None:
    """Say what was seen, on the first rank alone."""
    if os.environ.get("RANK", "0") != "0":
        return
    if not takeover.trained:
        _tell("no model was trained")
    for trained in takeover.trained:
        for line in _lines(trained):
            say(line)
    if path is None:
        return
    if path.suffix == ".json":
        models = [{**_report(trained), "problems": trained.problems} for trained in takeover.trained]
        write_document(json.dumps({"models": models}, indent=2) + "\n", path)
    elif path.suffix in (".html", ".htm"):
        from ckpt_surgery.guarding.page import guard_page

        pages = [(type(t.model).__name__, t.problems, t.guard.report() if t.guard else None) for t in takeover.trained]
        write_document(guard_page(pages), path)
    else:
        lines = [line for trained in takeover.trained for line in _lines(trained)]
        write_document("\n".join(lines) + "\n", path)


def _lines(trained: Trained) -> list[str]:
    name = type(trained.model).__name__
    lines = [f"ckpt_surgery: {name}: {problem}" for problem in trained.problems]
    if trained.surgery is not None:
        lines += str(trained.surgery).splitlines()
    if trained.guard is None:
        return lines or [f"ckpt_surgery: {name} trained without checkpointing: --wrap checkpoints it"]
    report = trained.guard.report()
    lines += str(report).splitlines()
    if report.faults:
        lines.append(f"ckpt_surgery: {plural(len(report.faults), 'fault')}")
    return lines


def _report(trained: Trained) -> dict[str, Any]:
    if trained.guard is None:
        return {"model": type(trained.model).__name__}
    return trained.guard.report().to_dict()


def _tell(message: str) -> None:
    say(f"ckpt_surgery: {message}")
