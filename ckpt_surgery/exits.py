"""How a command ends: with an exit code, and with one line on standard error where something went wrong.

Exit codes: 0 clean, 1 findings, 2 bad input or an internal error, 130 interrupted.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import typer

from ckpt_surgery.config import ConfigError
from ckpt_surgery.terminal import OutputError, say


def finish(body: Callable[[], int], interrupted: Callable[[], str] | None = None) -> None:
    """Run the body of a command and leave with its exit code; whatever goes wrong becomes one line.

    `interrupted` tells, after an interrupt, what is left as what.
    """
    try:
        code = body()
    except (ConfigError, OutputError) as error:
        code = fail(str(error))
    except KeyboardInterrupt:
        state = interrupted() if interrupted else "every file is whole, as it was or repaired"
        say(f"ckpt_surgery: interrupted; {state}")
        code = 130
    except Exception as error:
        from ckpt_surgery.source.discover import TransformersNotFound

        code = fail(str(error)) if isinstance(error, TransformersNotFound) else _fail_as_bug(error)
    raise typer.Exit(code)


def fail(message: str) -> int:
    """Say what is wrong; the exit code that goes with it."""
    say(f"ckpt_surgery: error: {message}")
    return 2


def write_file(path: Path, text: str) -> None:
    """Write what `--output` asks for. Raises OutputError where that cannot be done."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"--output {path} cannot be written to: {error.strerror or error}") from None


def _fail_as_bug(error: Exception) -> int:
    if os.environ.get("CKPT_SURGERY_DEBUG") == "1":
        traceback.print_exc()
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return fail(f"{what}: this is a bug in ckpt_surgery; CKPT_SURGERY_DEBUG=1 shows where")
