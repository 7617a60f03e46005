"""Run in a process of its own: import every PyTorch modeling file of one copy of transformers.

Usage: python -m tests.measure.import_script FOLDER RESULT, where FOLDER holds the `transformers` package to use.
RESULT becomes a JSON object from module name to null, or to the error in one line with FOLDER replaced by "...".
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import transformers

OTHER_FRAMEWORKS = ("modeling_tf_", "modeling_flax_")


def main(folder: Path, result: Path) -> None:
    here = Path(transformers.__file__).resolve()
    assert here.is_relative_to(folder.resolve()), f"imported transformers from {here}, not from {folder}"
    names = [
        f"transformers.models.{file.parent.name}.{file.stem}"
        for file in sorted(here.parent.glob("models/*/modeling_*.py"))
        if not file.stem.startswith(OTHER_FRAMEWORKS)
    ]
    result.write_text(json.dumps({name: outcome(name, folder) for name in names}), encoding="utf-8")


def outcome(name: str, folder: Path) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # an optional dependency that is missing fails in many ways
        return " ".join(f"{type(error).__name__}: {error}".replace(str(folder), "...").split())
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
