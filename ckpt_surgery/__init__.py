"""ckpt_surgery: find where gradient checkpointing silently fails in transformers models, repair it, and prove it.

The public names are those of `__init__.pyi`. Each is imported when it is first used, so that `import ckpt_surgery`
costs nothing and static checks never load torch.
"""

from __future__ import annotations

import re as _re
from importlib import import_module as _import_module
from pathlib import Path as _Path

_LIST = _Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {name: home for home, name in _re.findall(r"^from (\S+) import (\w+) as \2$", _LIST, _re.MULTILINE)}
_NEEDS = {
    "runtime": ("torch",),
    "guarding": ("torch",),
    "guarding.trainer": ("torch", "transformers"),
    "long_sequences": ("torch",),
    "measure.verify": ("torch",),
    "planning": ("torch",),
    "testing": ("torch",),
    "tiny": ("torch", "transformers"),
}
"""What the modules below the package need that the static half does without."""


def __getattr__(name: str) -> object:
    if name == "__all__":
        return _available()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: object = getattr(_import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from ckpt_surgery.optional import RUNTIME_PACKAGES, missing_package

        if error.name not in RUNTIME_PACKAGES:
            raise
        raise missing_package(name, error.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *_available()})


def _available() -> list[str]:
    """The public names that can be had here: `help()` and a star import work without torch too."""
    from ckpt_surgery.optional import is_installed

    missing = [module for module, packages in _NEEDS.items() if not all(map(is_installed, packages))]
    absent = tuple(f"{__name__}.{module}" for module in missing)
    return [name for name, home in _HOMES.items() if not home.startswith(absent)]
