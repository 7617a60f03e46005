"""Import modules and say which cannot be. Standard library only.

Run as a script in a process of its own, since what it imports is other people's code: the first argument is the folder
to import from; standard input has the names of the modules, one a line. Prints a JSON object: for each name why it
cannot be imported, empty where it can. What the modules print goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Iterable


def failures(names: Iterable[str]) -> dict[str, str]:
    """For each name why the module cannot be imported, as one line; empty where it can."""
    return {name: _failure(name) for name in names}


def _failure(name: str) -> str:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        said = str(error).strip().splitlines()
        return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return ""


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    with contextlib.redirect_stdout(sys.stderr):
        reasons = failures(sys.stdin.read().split())
    print(json.dumps(reasons))
