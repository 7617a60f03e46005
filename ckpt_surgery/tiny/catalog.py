"""Which model classes the live transformers has: those of the auto mappings and some of their parts, by name.

No model's module is imported here before an entry is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt_surgery.errors import CannotBuild
from ckpt_surgery.tiny.towers import TOWERS


@dataclass(frozen=True)
class ModelEntry:
    """One model class: its name, the model type, and the heads (auto mappings) under which it is listed.

    `heads` are names such as `CAUSAL_LM`; the mapping of base models is `MODEL`. A part of a model that no mapping
    lists has none; `module` and `config_name` say where it is and what configuration it takes. `types` are all
    model types under which a mapping lists it, `model_type` among them.
    """

    name: str
    model_type: str
    heads: tuple[str, ...]
    module: str = "transformers"
    config_name: str = ""
    types: tuple[str, ...] = ()

    def load(self) -> type:
        """The model class. Raises CannotBuild where it cannot be imported, with the reason."""
        found: type = self._imported(self.name)
        if getattr(found, "is_dummy", False) or "dummy" in found.__module__:
            raise CannotBuild(self.name, "import", ImportError(f"a package that {self.name} needs is not installed"))
        return found

    def config_class(self) -> type:
        """The configuration class. Raises CannotBuild like `load`."""
        if self.config_name:
            named: type = self._imported(self.config_name)
            return named
        own: type | None = getattr(self.load(), "config_class", None)
        if own is None:
            raise CannotBuild(self.name, "import", TypeError("the class names no configuration class"))
        return own

    def _imported(self, name: str) -> Any:
        try:
            return getattr(import_module(self.module), name)
        except Exception as error:  # whatever an import of somebody else's module may raise
            raise CannotBuild(self.name, "import", error) from None


@cache
def model_classes() -> Mapping[str, ModelEntry]:
    """Every model class that an auto mapping of the live transformers lists, by class name, each once.

    A class that serves several heads or types stands under the type that names it first, with all its `types`.
    Parts of models follow that no mapping lists (`towers.TOWERS`), as far as this release has them. Nothing of a
    model is imported.
    """
    heads: dict[str, list[str]] = {}
    types: dict[str, dict[str, None]] = {}
    for head, names in _mappings().items():
        for model_type, listed in names.items():
            for name in (listed,) if isinstance(listed, str) else listed:
                types.setdefault(name, {})[model_type] = None
                if head not in heads.setdefault(name, []):
                    heads[name].append(head)
    found = {
        name: ModelEntry(name, next(iter(types[name])), tuple(of), types=tuple(types[name]))
        for name, of in heads.items()
    }
    parts = {entry.name: entry for entry in _towers() if entry.name not in found}
    return MappingProxyType({**found, **parts})


def _mappings() -> dict[str, Mapping[str, Any]]:
    auto = import_module("transformers.models.auto.modeling_auto")
    names = (n for n in vars(auto) if n.startswith("MODEL_") and n.endswith("MAPPING_NAMES"))
    return {_head(name): getattr(auto, name) for name in names}


def _head(mapping: str) -> str:
    return mapping.removesuffix("MAPPING_NAMES").removeprefix("MODEL_").removeprefix("FOR_").rstrip("_") or "MODEL"


def _towers() -> Iterator[ModelEntry]:
    """The parts that the installed release has: seen in the source, which is cheaper than an import."""
    models = Path(str(import_module("transformers").__file__)).parent / "models"
    for folder, parts in TOWERS.items():
        source = models / folder / f"modeling_{folder}.py"
        text = source.read_text(encoding="utf-8") if source.is_file() else ""
        module = f"transformers.models.{folder}.modeling_{folder}"
        for name, config_name in parts.items():
            if f"\nclass {name}(" in text and config_name in text:
                yield ModelEntry(name, folder, (), module, config_name, (folder,))
