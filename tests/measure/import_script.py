"""Import the PyTorch modeling files of one copy of transformers, in a separate process.

Usage: python -m tests.measure.import_script FOLDER RESULT [MODULE ...], where FOLDER holds the `transformers` package
to use, and the modules are all of them unless some are given.
RESULT becomes a JSON object from module name to null, or to the error in one line with FOLDER replaced by "...".
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

OTHER_FRAMEWORKS = ("modeling_tf_", "modeling_flax_")


def modules(folder: Path) -> list[str]:
    """List the modeling files of the package in `folder` without importing any."""
    return [
        f"transformers.models.{file.parent.name}.{file.stem}"
        for file in sorted((folder / "transformers").glob("models/*/modeling_*.py"))
        if not file.stem.startswith(OTHER_FRAMEWORKS)
    ]


def main(folder: Path, result: Path, names: Sequence[str]) -> None:
    import transformers

    here = Path(transformers.__file__).resolve()
    assert here.is_relative_to(folder.resolve()), f"imported transformers from {here}, not from {folder}"
    result.write_text(json.dumps({name: outcome(name, folder) for name in names or modules(folder)}), encoding="utf-8")


def outcome(name: str, folder: Path) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # an optional dependency that is missing fails in many ways
        return " ".join(f"{type(error).__name__}: {error}".replace(str(folder), "...").split())
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
