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
"""The packages that each part of the runtime half needs; the static half needs none of them."""


def __getattr__(name: str) -> object:
    if name == "__all__":
        return _available()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if needs := _needs(_HOMES[name]):
        from ckpt_surgery.optional import load_runtime

        load_runtime(name, needs)
    try:
        value: object = getattr(_import_module(_HOMES[name]), name)
    except AttributeError as error:  # torch lacks something; raised as it is, it would say that `name` does not exist
        raise ImportError(f"{name} cannot be imported: {error}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *_available()})


def _needs(home: str) -> tuple[str, ...]:
    """Return the packages that a module of ours needs."""
    modules = (module for module in _NEEDS if home.startswith(f"{__name__}.{module}"))
    return tuple(package for module in modules for package in _NEEDS[module])


def _available() -> list[str]:
    """List the public names that can be imported here: `help()` and a star import work without torch too."""
    from ckpt_surgery.optional import runtime_problem

    return [name for name, home in _HOMES.items() if not (needs := _needs(home)) or not runtime_problem(name, needs)]
