"""List the model classes of the installed transformers: from the auto mappings, its exports, and parts of models.

The module of a model is imported only when its entry is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt_surgery.errors import BuildStage, CannotBuild
from ckpt_surgery.model_patches import family_tables

_CONFIGURATIONS = "transformers.models.auto.configuration_auto"
_BASES = re.compile(r"\nclass (\w+)\(([^)]*)\)")  # with ^ instead of \n it takes four times as long
_BASE_NAME = re.compile(r"PreTrainedModel$")
_MODELING_FILE = re.compile(r"models\..*\.modeling_(?!tf_|flax_)\w+$")


@dataclass(frozen=True)
class ModelEntry:
    """One model class: its name, its model type, and the heads (auto mappings) that list it.

    `heads` are names such as `CAUSAL_LM`; the mapping of base models is `MODEL`. A class that no mapping lists has the
    head in its name, if any. `config_name` is the configuration class of a part that names none itself. `types` are
    all model types under which a mapping lists the class, `model_type` among them.
    """

    name: str
    model_type: str
    heads: tuple[str, ...]
    module: str = "transformers"
    config_name: str = ""
    types: tuple[str, ...] = ()

    def load(self) -> type:
        """Import the model class.

        Raises:
            CannotBuild: It cannot be imported, with the reason.
        """
        model_class: type = self._imported(self.name)
        if getattr(model_class, "is_dummy", False) or "dummy" in model_class.__module__:
            raise CannotBuild(
                self.name, BuildStage.IMPORT, ImportError(f"a package that {self.name} needs is not installed")
            )
        return model_class

    def config_class(self, model_type: str = "") -> type:
        """Import the configuration class, or that of another model type of the class, if it has the same parts.

        Raises:
            CannotBuild: As in `load`, or the class names no configuration.
        """
        if self.config_name:
            named: type = self._imported(self.config_name)
            return named
        own: type | None = getattr(self.load(), "config_class", None)
        if own is None:
            raise CannotBuild(self.name, BuildStage.IMPORT, TypeError("the class names no configuration class"))
        if model_type == self.model_type or model_type not in self.types:
            return own
        other: type = import_module(_CONFIGURATIONS).CONFIG_MAPPING[model_type]
        is_alike = set(getattr(other, "sub_configs", ())) == set(getattr(own, "sub_configs", ()))
        return other if is_alike else own

    def _imported(self, name: str) -> Any:
        try:
            return getattr(import_module(self.module), name)
        except Exception as error:  # third-party modules may raise anything on import
            raise CannotBuild(self.name, BuildStage.IMPORT, error) from None


@cache
def model_classes() -> Mapping[str, ModelEntry]:
    """List every model class of the installed transformers, once each. No model is imported.

    They are those that an auto mapping lists, others that transformers exports, and the parts that `model_patches`
    names, if this release has them; `model_patches` also says which classes are left out, and why. A class with
    several model types is under that whose module defines it, with all of them in `types`.

    Returns:
        The entries by class name.
    """
    heads: dict[str, list[str]] = {}
    types: dict[str, dict[str, None]] = {}
    for mapping, names in vars(import_module("transformers.models.auto.modeling_auto")).items():
        if not (mapping.startswith("MODEL_") and mapping.endswith("MAPPING_NAMES")):
            continue
        head = mapping.removesuffix("MAPPING_NAMES").removeprefix("MODEL_").removeprefix("FOR_").rstrip("_") or "MODEL"
        for model_type, listed in names.items():
            for name in (listed,) if isinstance(listed, str) else listed:
                if name in family_tables().left_out:
                    continue
                types.setdefault(name, {})[model_type] = None
                if head not in heads.setdefault(name, []):
                    heads[name].append(head)
    configurations = import_module(_CONFIGURATIONS)
    folders: dict[str, str] = {
        kind: configurations.model_type_to_module_name(kind)
        for kind in (*configurations.CONFIG_MAPPING_NAMES, *chain(*types.values()))
    }
    exported_from: Mapping[str, str] = import_module("transformers")._class_to_module
    entries: dict[str, ModelEntry] = {}
    for name, its_heads in heads.items():
        kinds, module = tuple(types[name]), exported_from.get(name, "")
        model_type = next((kind for kind in kinds if folders[kind] in module.split(".")), kinds[0])
        folder = folders[model_type]
        module = "transformers" if module else f"transformers.models.{folder}.modeling_{folder}"
        entries[name] = ModelEntry(name, model_type, tuple(its_heads), module, types=kinds)
    for name, module in _exported_models(entries).items():
        folder = module.split(".")[-2]
        in_folder = [kind for kind in configurations.CONFIG_MAPPING_NAMES if folders[kind] == folder]
        model_type = min(in_folder, key=lambda kind: kind.replace("-", "_") != folder, default=folder)
        # the head in the name of the class, as in `BertForMultipleChoice`
        words = re.findall(r"[A-Z][a-z]+|[A-Z]+", name.partition("For")[2])
        head_in_name = ("_".join(words).upper(),) if words else ()
        entries[name] = ModelEntry(name, model_type, head_in_name, f"transformers.{module}", types=(model_type,))
    for part in _parts_of_models():
        entries[part.name] = replace(entries[part.name] if part.name in heads else part, config_name=part.config_name)
    return MappingProxyType(entries)


def _parts_of_models() -> Iterator[ModelEntry]:
    """Yield the parts that the installed release has, looked up in its source, which is cheaper than imports."""
    models = Path(str(import_module("transformers").__file__)).parent / "models"
    for folder, parts in sorted(family_tables().parts.items()):
        source = models / folder / f"modeling_{folder}.py"
        text = source.read_text(encoding="utf-8") if source.is_file() else ""
        module = f"transformers.models.{folder}.modeling_{folder}"
        for name, config_name in parts.items():
            if f"\nclass {name}(" in text and config_name in text:
                yield ModelEntry(name, folder, (), module, config_name, (folder,))


def _exported_models(known: Iterable[str]) -> dict[str, str]:
    """Find further exported models in the source; return their modules below `transformers`, by class name."""
    transformers = import_module("transformers")
    skipped = {*known, *family_tables().left_out}
    root = Path(str(transformers.__file__)).parent
    candidates = {
        name: module
        for name, module in transformers._class_to_module.items()
        if _MODELING_FILE.match(module) and name[:1].isupper() and not name.isupper() and name not in skipped
    }
    bases: dict[str, list[str]] = {}
    for module in dict.fromkeys(candidates.values()):
        source = (root / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        bases |= {match[1]: re.findall(r"\w+", match[2]) for match in _BASES.finditer(source)}
    return {
        name: module for name, module in candidates.items() if not _BASE_NAME.search(name) and _is_model(name, bases)
    }


def _is_model(name: str, bases: Mapping[str, list[str]], inside: tuple[str, ...] = ()) -> bool:
    """Tell whether one of the bases of a class, or of their bases, has the name of a pretrained model."""
    return any(
        _BASE_NAME.search(base) or (base not in inside and _is_model(base, bases, (*inside, base)))
        for base in bases.get(name, ())
    )
