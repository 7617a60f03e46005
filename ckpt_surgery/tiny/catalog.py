"""The model classes of the installed transformers: those in the auto mappings, and some of their parts, by name.

The module of a model is imported only when its entry is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt_surgery.errors import BuildStage, CannotBuild
from ckpt_surgery.tiny.towers import TOWERS


@dataclass(frozen=True)
class ModelEntry:
    """One model class: its name, its model type, and the heads (auto mappings) that list it.

    `heads` are names such as `CAUSAL_LM`; the mapping of base models is `MODEL`. A part of a model that no mapping
    lists has none; its `module` and `config_name` say where it is defined and which configuration it takes. `types`
    are all model types under which a mapping lists the class, `model_type` among them.
    """

    name: str
    model_type: str
    heads: tuple[str, ...]
    module: str = "transformers"
    config_name: str = ""
    types: tuple[str, ...] = ()

    def load(self) -> type:
        """The model class. Raises CannotBuild with the reason if it cannot be imported."""
        model_class: type = self._imported(self.name)
        if getattr(model_class, "is_dummy", False) or "dummy" in model_class.__module__:
            raise CannotBuild(
                self.name, BuildStage.IMPORT, ImportError(f"a package that {self.name} needs is not installed")
            )
        return model_class

    def config_class(self) -> type:
        """The configuration class. Raises CannotBuild like `load`."""
        if self.config_name:
            named: type = self._imported(self.config_name)
            return named
        own: type | None = getattr(self.load(), "config_class", None)
        if own is None:
            raise CannotBuild(self.name, BuildStage.IMPORT, TypeError("the class names no configuration class"))
        return own

    def _imported(self, name: str) -> Any:
        try:
            return getattr(import_module(self.module), name)
        except Exception as error:  # third-party modules may raise anything on import
            raise CannotBuild(self.name, BuildStage.IMPORT, error) from None


@cache
def model_classes() -> Mapping[str, ModelEntry]:
    """Every model class that an auto mapping of the installed transformers lists, once each, by class name.

    A class with several model types stands under the first that names it, with all of them in `types`. The parts of
    models that no mapping lists (`towers.TOWERS`) follow, as far as this release has them. No model is imported.
    """
    heads: dict[str, list[str]] = {}
    types: dict[str, dict[str, None]] = {}
    for head, names in _mappings().items():
        for model_type, listed in names.items():
            for name in (listed,) if isinstance(listed, str) else listed:
                types.setdefault(name, {})[model_type] = None
                if head not in heads.setdefault(name, []):
                    heads[name].append(head)
    mapped = {
        name: ModelEntry(name, next(iter(types[name])), tuple(of), types=tuple(types[name]))
        for name, of in heads.items()
    }
    parts = {entry.name: entry for entry in _towers() if entry.name not in mapped}
    return MappingProxyType({**mapped, **parts})


def _mappings() -> dict[str, Mapping[str, Any]]:
    auto = import_module("transformers.models.auto.modeling_auto")
    names = (n for n in vars(auto) if n.startswith("MODEL_") and n.endswith("MAPPING_NAMES"))
    return {_head(name): getattr(auto, name) for name in names}


def _head(mapping: str) -> str:
    return mapping.removesuffix("MAPPING_NAMES").removeprefix("MODEL_").removeprefix("FOR_").rstrip("_") or "MODEL"


def _towers() -> Iterator[ModelEntry]:
    """The parts that the installed release has, looked up in its source: that is cheaper than an import."""
    models = Path(str(import_module("transformers").__file__)).parent / "models"
    for folder, parts in TOWERS.items():
        source = models / folder / f"modeling_{folder}.py"
        text = source.read_text(encoding="utf-8") if source.is_file() else ""
        module = f"transformers.models.{folder}.modeling_{folder}"
        for name, config_name in parts.items():
            if f"\nclass {name}(" in text and config_name in text:
                yield ModelEntry(name, folder, (), module, config_name, (folder,))
