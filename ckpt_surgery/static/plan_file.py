"""Read the file of a plan: the calls that it makes, with their arguments. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckpt_surgery.errors import OptionError
from ckpt_surgery.text import error_line, listed

Calls = Mapping[str, Mapping[str, Any]]
"""Names of functions, each with the arguments that it takes besides the model."""
FUNCTIONS = ("tile_mlp", "fuse_loss", "wrap_blocks")
"""The functions that a plan may call, in this order."""


def read_plan(path: str | Path) -> dict[str, dict[str, Any]]:
    """Return the calls of a plan that `plan --yaml` or `fit --write` wrote. Raises OptionError for any other file."""
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error_line(error)}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        document = None
    calls = document.get("calls", "") if isinstance(document, dict) else ""
    if calls is None:  # nothing may follow the colon, as for a call without arguments
        calls = {}
    if isinstance(calls, dict):
        calls = {name: {} if arguments is None else arguments for name, arguments in calls.items()}
    if not isinstance(calls, dict) or any(
        name not in FUNCTIONS or not isinstance(arguments, dict) for name, arguments in calls.items()
    ):
        raise OptionError(
            f"{path} is not a plan: `fit --write` and `plan --yaml` write one, with calls of {listed(FUNCTIONS)}"
        )
    return calls
