"""The file of a plan: which calls it makes, with which arguments. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckpt_surgery.errors import OptionError
from ckpt_surgery.text import error_line, listed

Calls = Mapping[str, Mapping[str, Any]]
"""Arguments beside the model, by the names of functions."""
FUNCTIONS = ("tile_mlp", "fuse_loss", "wrap_blocks")
"""Those that a plan may call, in their order."""


def read_plan(path: str | Path) -> dict[str, dict[str, Any]]:
    """Return the calls of a plan that `plan --yaml` or `fit --write` wrote. Raises OptionError if it is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error_line(error)}") from None
    calls = _section(text.splitlines(), "calls")
    if calls is None or any(name not in FUNCTIONS for name in calls):
        raise OptionError(
            f"{path} is not a plan: `fit --write` and `plan --yaml` write one, with calls of {listed(FUNCTIONS)}"
        )
    return calls


def _section(lines: Sequence[str], name: str) -> dict[str, Any] | None:
    """Return a mapping of a document as `planning.plan_yaml` writes it: names and JSON values, indented by two."""
    document: dict[str, Any] = {}
    stack = [document]
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        text = line.strip()
        if text.startswith('"'):  # keys are names, or texts as JSON has them
            key, end = json.JSONDecoder().raw_decode(text)
            rest = text[end:]
        else:
            key, colon, rest = text.partition(":")
            rest = colon + rest
        if not rest.startswith(":") or depth >= len(stack):
            return None
        value = rest[1:].strip()
        del stack[depth + 1 :]
        try:
            stack[depth][key] = json.loads(value) if value else {}
        except ValueError:
            return None
        if not value:
            stack.append(stack[depth][key])
    section = document.get(name)
    return section if isinstance(section, dict) and all(isinstance(each, dict) for each in section.values()) else None
