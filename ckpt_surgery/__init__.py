"""ckpt_surgery: find where gradient checkpointing silently fails in transformers models, repair it, and prove it.

The public names are those of `__init__.pyi`. Each is imported when it is first used, so that `import ckpt_surgery`
costs nothing and static checks never load torch.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

_LIST = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as \2$", _LIST, re.MULTILINE)}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: object = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from ckpt_surgery.optional import RUNTIME_PACKAGES, missing_package

        if error.name not in RUNTIME_PACKAGES:
            raise
        raise missing_package(name, error.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
