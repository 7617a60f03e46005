"""The model classes of the installed transformers, by name: in the auto mappings, exported, and parts of models.

The module of a model is imported only when its entry is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt_surgery.errors import BuildStage, CannotBuild
from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny.exported import exported_models


@dataclass(frozen=True)
class ModelEntry:
    """One model class: its name, its model type, and the heads (auto mappings) that list it.

    `heads` are names such as `CAUSAL_LM`; the mapping of base models is `MODEL`. A class that no mapping lists has the
    one that its name speaks of. `config_name` is the configuration class of a part that names none. `types` are all
    model types under which a mapping lists the class, `model_type` among them.
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

    def config_class(self, model_type: str = "") -> type:
        """The configuration class; that of another model type which the class serves, if it has the same parts.

        Raises CannotBuild like `load`.
        """
        if self.config_name:
            named: type = self._imported(self.config_name)
            return named
        own: type | None = getattr(self.load(), "config_class", None)
        if own is None:
            raise CannotBuild(self.name, BuildStage.IMPORT, TypeError("the class names no configuration class"))
        if model_type == self.model_type or model_type not in self.types:
            return own
        other: type = _configurations().CONFIG_MAPPING[model_type]
        is_alike = set(getattr(other, "sub_configs", ())) == set(getattr(own, "sub_configs", ()))
        return other if is_alike else own

    def _imported(self, name: str) -> Any:
        try:
            return getattr(import_module(self.module), name)
        except Exception as error:  # third-party modules may raise anything on import
            raise CannotBuild(self.name, BuildStage.IMPORT, error) from None


@cache
def model_classes() -> Mapping[str, ModelEntry]:
    """Every model class of the installed transformers, once each, by class name.

    They are those that an auto mapping lists, the others that transformers exports, and the parts that families name,
    as far as this release has them; families also say which classes are left out, and why. A class with several model
    types stands under the one whose module defines it, with all of them in `types`. No model is imported.
    """
    heads: dict[str, list[str]] = {}
    types: dict[str, dict[str, None]] = {}
    for head, names in _mappings().items():
        for model_type, listed in names.items():
            for name in (listed,) if isinstance(listed, str) else listed:
                if name in family_tables().left_out:
                    continue
                types.setdefault(name, {})[model_type] = None
                if head not in heads.setdefault(name, []):
                    heads[name].append(head)
    mapped = {name: _mapped_entry(name, tuple(types[name]), tuple(of)) for name, of in heads.items()}
    exported = {name: _exported_entry(name, module) for name, module in exported_models(mapped).items()}
    whole = {**mapped, **exported}
    parts = {part.name: replace(mapped.get(part.name, part), config_name=part.config_name) for part in _towers()}
    return MappingProxyType({**whole, **parts})


def _mapped_entry(name: str, types: tuple[str, ...], heads: tuple[str, ...]) -> ModelEntry:
    """The entry of a class under the model type of the folder that defines it, or its first one."""
    exported_from: str = import_module("transformers")._class_to_module.get(name, "")
    model_type = next((kind for kind in types if _module_name(kind) in exported_from.split(".")), types[0])
    folder = _module_name(model_type)
    module = "transformers" if exported_from else f"transformers.models.{folder}.modeling_{folder}"
    return ModelEntry(name, model_type, heads, module, types=types)


def _exported_entry(name: str, module: str) -> ModelEntry:
    folder = module.split(".")[-2]
    kinds = _types_by_folder().get(folder, [])
    model_type = min(kinds, key=lambda kind: kind.replace("-", "_") != folder, default=folder)
    return ModelEntry(name, model_type, _heads_of(name), f"transformers.{module}", types=(model_type,))


@cache
def _types_by_folder() -> Mapping[str, list[str]]:
    """The model types of each folder of models."""
    result: dict[str, list[str]] = {}
    for model_type in _configurations().CONFIG_MAPPING_NAMES:
        result.setdefault(_module_name(model_type), []).append(model_type)
    return result


def _heads_of(name: str) -> tuple[str, ...]:
    """The head that the name of a class speaks of, as in `BertForMultipleChoice`."""
    words = re.findall(r"[A-Z][a-z]+|[A-Z]+", name.partition("For")[2])
    return ("_".join(words).upper(),) if words else ()


def _module_name(model_type: str) -> str:
    """The folder of a model type."""
    folder: str = _configurations().model_type_to_module_name(model_type)
    return folder


def _configurations() -> Any:
    return import_module("transformers.models.auto.configuration_auto")


def _mappings() -> dict[str, Mapping[str, Any]]:
    auto = import_module("transformers.models.auto.modeling_auto")
    names = (n for n in vars(auto) if n.startswith("MODEL_") and n.endswith("MAPPING_NAMES"))
    return {_head(name): getattr(auto, name) for name in names}


def _head(mapping: str) -> str:
    return mapping.removesuffix("MAPPING_NAMES").removeprefix("MODEL_").removeprefix("FOR_").rstrip("_") or "MODEL"


def _towers() -> Iterator[ModelEntry]:
    """The parts that the installed release has, looked up in its source: that is cheaper than an import."""
    models = Path(str(import_module("transformers").__file__)).parent / "models"
    for folder, parts in sorted(family_tables().parts.items()):
        source = models / folder / f"modeling_{folder}.py"
        text = source.read_text(encoding="utf-8") if source.is_file() else ""
        module = f"transformers.models.{folder}.modeling_{folder}"
        for name, config_name in parts.items():
            if f"\nclass {name}(" in text and config_name in text:
                yield ModelEntry(name, folder, (), module, config_name, (folder,))
