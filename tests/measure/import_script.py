"""Import modules of one copy of transformers, in a separate process.

Usage: python -m tests.measure.import_script FOLDER RESULT MODULE ..., where FOLDER holds the `transformers` package.
RESULT becomes a JSON object from module name to null, or to the error in one line with FOLDER replaced by "...".
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def main(folder: Path, result: Path, names: Sequence[str]) -> None:
    import transformers

    here = Path(transformers.__file__).resolve()
    assert here.is_relative_to(folder.resolve()), f"imported transformers from {here}, not from {folder}"
    result.write_text(json.dumps({name: outcome(name, folder) for name in names}), encoding="utf-8")


def outcome(name: str, folder: Path) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # an optional dependency that is missing fails in many ways
        return " ".join(f"{type(error).__name__}: {error}".replace(str(folder), "...").split())
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
