"""The entry point of the command line, which registers the commands; each has its own file.

A command imports what it runs only when it runs: `--help` loads neither rules nor torch.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ckpt_surgery.cli.adopt import adopt_command
from ckpt_surgery.cli.apply import apply_command
from ckpt_surgery.cli.check import check_command
from ckpt_surgery.cli.exits import ExitCode, fail, finish
from ckpt_surgery.cli.explain import explain_command
from ckpt_surgery.cli.fit import fit_command
from ckpt_surgery.cli.help import GroupedCommand, GroupedCommands
from ckpt_surgery.cli.plan import plan_command
from ckpt_surgery.cli.pr import pr_command
from ckpt_surgery.cli.rule import rule_command
from ckpt_surgery.cli.run import run_command
from ckpt_surgery.cli.terminal import say, unwritable_output, write, write_lines
from ckpt_surgery.cli.verify import verify_command
from ckpt_surgery.errors import OptionError
from ckpt_surgery.text import aligned
from ckpt_surgery.version import __version__

_LOCAL_RANK = re.compile(r"--local[-_]rank=\d+")

app = typer.Typer(
    cls=GroupedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fit trainings into memory by gradient checkpointing, and prove that it is right.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --version, also print what a bug report needs.")
    ] = False,
) -> None:
    def body() -> int:
        if not version:
            raise OptionError("--all needs --version here: run `ckpt_surgery --version --all`")
        if everything:
            from ckpt_surgery.measure.versions import bug_report_versions

            write_lines(aligned(list(bug_report_versions().items())))
        else:
            write(f"ckpt_surgery {__version__}\n")
        return ExitCode.CLEAN

    if version or everything:
        finish(body)


_TRAIN, _VERIFY, _MAINTAIN = "Train", "Verify", "Maintain a model"
_STARTS_A_SCRIPT = {"allow_interspersed_args": False}
app.command("fit", cls=GroupedCommand, rich_help_panel=_TRAIN, context_settings=_STARTS_A_SCRIPT)(fit_command)
app.command("explain", cls=GroupedCommand, rich_help_panel=_TRAIN)(explain_command)
app.command("plan", cls=GroupedCommand, rich_help_panel=_TRAIN)(plan_command)
app.command("run", cls=GroupedCommand, rich_help_panel=_TRAIN, context_settings=_STARTS_A_SCRIPT)(run_command)
app.command("verify", cls=GroupedCommand, rich_help_panel=_VERIFY)(verify_command)
app.command("check", cls=GroupedCommand, rich_help_panel=_VERIFY)(check_command)
app.command("rule", cls=GroupedCommand, rich_help_panel=_VERIFY)(rule_command)
app.command("apply", cls=GroupedCommand, rich_help_panel=_MAINTAIN)(apply_command)
app.command("adopt", cls=GroupedCommand, rich_help_panel=_MAINTAIN)(adopt_command)
app.command("pr", cls=GroupedCommand, rich_help_panel=_MAINTAIN)(pr_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. `arguments` default to those of the process."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `ckpt_surgery check models >&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process
    for stream in (sys.stdout, sys.stderr):
        # a file name may not fit the terminal's encoding, and printing it must not fail
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        if len(given) > 1 and given[1] in ("run", "fit") and _LOCAL_RANK.fullmatch(given[0]):
            # DeepSpeed's launcher and `torch.distributed.launch` put it first, but it is meant for the script
            given[:2] = [given[1], f"--launched={given[0]}"]
        app(args=given, prog_name="ckpt_surgery")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except OSError as error:  # from printing the help; all other output goes through `terminal.write`
        return fail(str(unwritable_output(error)))
    except KeyboardInterrupt:
        say("ckpt_surgery: interrupted")
        return 128 + signal.SIGINT
    return 0
