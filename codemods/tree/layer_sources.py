"""Find where a file can import the layer class from, if it can at all.

The class came with transformers 4.52: a package that asks for an older release must not import it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.file_facts import Import
from ckpt_surgery.codemods.providers.layer_class import CLEARED as CLEARED_BY
from ckpt_surgery.codemods.tree.answers import kept
from ckpt_surgery.codemods.tree.names import TreeNames
from ckpt_surgery.codemods.tree.requirements import named_releases, only_before, only_since
from ckpt_surgery.model_patches.release_names import CLEARED, CLEARS_SINCE

LAYERS = "modeling_layers"
_FIRST = "4.52"
_CORE = re.compile(r"^(\.{3,})(?!models\b)(\w+)")
_FOLDERS_ABOVE = 3
"""How far above a file the one that defines its layer class may be: `fla/models/gla/modeling_gla.py`."""
_LATE = ("transformers>=5.23",)
"""What is taken for asked for where nothing says so, and nothing is installed."""
_LOWER, _UPPER = frozenset({">=", ">", "==", "===", "~="}), frozenset({"<", "<="})


@dataclass(eq=False)
class LayerSources:
    """The layer classes that the files of a tree can import.

    `required` gives the requirements on transformers that hold for a file, as its package writes them, each with the
    file that says so. `installed` is the modeling_layers.py of the installed transformers, empty where there is none.
    """

    names: TreeNames
    required: Callable[[str], Mapping[str, str]]
    installed: str = ""

    def core_dots(self, path: str, item: Import) -> str:
        """Return the dots by which an import reaches transformers' own package; empty where it does not.

        Dots mean transformers where its `modeling_layers.py` is, and in a model's folder that lies there alone.
        """
        match = _CORE.match(item.module)
        if match is None or "models" in item.module or "models" not in re.split(r"[/\\]", path):
            return ""
        dots, module = match.groups()
        folder = path
        for _ in dots:
            folder = os.path.dirname(folder)
        return dots if self._is_core_folder(folder, module) else ""

    @kept
    def _is_core_folder(self, folder: str, module: str) -> bool:
        others = ("__init__", module, os.path.join(module, "__init__"))
        return self._is_there(folder, LAYERS) or not any(self._is_there(folder, other) for other in others)

    def _is_there(self, folder: str, module: str) -> bool:
        return self.names.facts(os.path.join(folder, f"{module}.py")) is not None

    @kept
    def is_core(self, path: str) -> bool:
        """Tell whether a file is one of transformers' own."""
        return any(self.core_dots(path, item) for item in self.names.read(path).imports)

    def uses_transformers(self, path: str) -> bool:
        """Tell whether a file imports from transformers."""
        return bool(self._imports(path))

    def needs_transformers(self, path: str) -> bool:
        """Tell whether a file that has a model of transformers imports from there under no condition."""
        imports = self._imports(path)
        return not imports or any(not item.guard for item in imports)

    @kept
    def _imports(self, path: str) -> list[Import]:
        imports = self.names.read(path).imports
        return [
            item for item in imports if item.module.partition(".")[0] == "transformers" or self.core_dots(path, item)
        ]

    @kept
    def outdated(self, path: str) -> str:
        """Return the requirement by which a file may meet a release without the layer class; empty for none."""
        if self.is_core(path):
            return ""
        before, package, _ = path.rpartition(f"{os.sep}transformers{os.sep}models{os.sep}")
        transformers = os.path.join(before, "transformers")
        if package and self._is_there(transformers, "__init__") and not self._is_there(transformers, LAYERS):
            return f"transformers<{_FIRST}"
        old = ((item, file) for item, file in self.required(path).items() if admits_releases_without_layers(item))
        return next((f"{item} ({file})" for item, file in old), "")

    def cleared(self, path: str) -> Mapping[str, tuple[str, str]]:
        """Return the keywords that the layer class of a file's blocks clears before it checkpoints.

        Each has the first release that clears it and the first that no longer does, both "" where all that may run the
        file clear it. That class is the tree's own, else that of the releases which its package asks for, else the
        installed one.
        """
        own = self._own_cleared(os.path.dirname(path))
        if own is None and (required := self.required(path)):
            return _cleared_in(required)
        names = self.names.read(self.installed)[CLEARED_BY] if own is None and self.installed else own
        return dict.fromkeys(_cleared_in(_LATE) if names is None else names, ("", ""))

    @kept
    def _own_cleared(self, folder: str) -> tuple[str, ...] | None:
        """Return what the tree's own class clears, for the files of a folder. Its likeliest place comes first."""
        package, models, _ = f"{folder}{os.sep}".rpartition(f"{os.sep}models{os.sep}")
        folders = [package] if models else []
        for _ in range(_FOLDERS_ABOVE):
            folders.append(folder)
            folder = os.path.dirname(folder)
        by_folder = (self.names.read(os.path.join(folder, f"{LAYERS}.py"))[CLEARED_BY] for folder in folders)
        return next((cleared for cleared in by_folder if cleared is not None), None)


def _cleared_in(requirements: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return what the releases clear that requirements admit. An end that all of them rule out is none."""
    cleared = {} if only_before(CLEARS_SINCE, requirements) else CLEARED
    return {
        name: (
            "" if not first or only_since(first, requirements) else first,
            "" if not end or only_before(end, requirements) else end,
        )
        for name, (first, end) in cleared.items()
        if not (first and only_before(first, requirements)) and not (end and only_since(end, requirements))
    }


def admits_releases_without_layers(requirement: str) -> bool:
    """Tell whether the oldest release that a requirement names is before the first with the layer class.

    A requirement that names none admits the newest one and says nothing.
    """
    from packaging.version import Version

    first = Version(_FIRST)
    named = [(item.operator, Version(version.base_version)) for item, version in named_releases(requirement) or ()]
    lowest = max((version for operator, version in named if operator in _LOWER), default=first)
    highest = ((operator, version) for operator, version in named if operator in _UPPER)
    return lowest < first or any(
        version < first or (operator == "<" and version == first) for operator, version in highest
    )
