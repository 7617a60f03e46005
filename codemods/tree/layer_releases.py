"""Find which releases of transformers may run a file: whether they have the layer class, and what it clears.

The class came with transformers 4.52: a package whose requirements admit an older release must not import it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.file_facts import Import
from ckpt_surgery.codemods.providers.layer_class import CLEARED_HERE
from ckpt_surgery.codemods.tree.caching import cached_method
from ckpt_surgery.codemods.tree.names import TreeNames
from ckpt_surgery.codemods.tree.requirements import FIRST_WITH_LAYERS, admits_old_releases, only_before, only_since
from ckpt_surgery.model_patches.release_names import CLEARED, CLEARS_SINCE

LAYERS_MODULE = "modeling_layers"
"""The module of transformers that defines the layer class."""
_CORE_IMPORT = re.compile(r"^(\.{3,})(?!models\b)(\w+)")
_FOLDERS_SEARCHED = 3
"""A file's own `modeling_layers.py` is looked for in its folder and in two above: `fla/models/gla/modeling_gla.py`."""
_DEFAULT_REQUIREMENT = ("transformers>=5.23",)
"""The requirement that is assumed if a package states none and no transformers is installed."""


@dataclass(eq=False)
class LayerReleases:
    """The releases of transformers that the files of a tree may run with.

    `required` maps the requirements on transformers that hold for a file, as its package writes them, to the file that
    states each. `installed` is the path of the installed transformers' modeling_layers.py; empty if there is none.
    """

    names: TreeNames
    required: Callable[[str], Mapping[str, str]]
    installed: str = ""

    def core_dots(self, path: str, item: Import) -> str:
        """Return the leading dots of an import if they lead to transformers' own package; otherwise empty.

        They do if the folder they lead to has a `modeling_layers.py`, or if neither that package nor the imported
        module is among the files, as when the folder of one model is checked alone.
        """
        match = _CORE_IMPORT.match(item.module)
        if match is None or "models" in item.module or "models" not in re.split(r"[/\\]", path):
            return ""
        dots, module = match.groups()
        folder = path
        for _ in dots:
            folder = os.path.dirname(folder)
        return dots if self._is_core_folder(folder, module) else ""

    @cached_method
    def _is_core_folder(self, folder: str, module: str) -> bool:
        others = ("__init__", module, os.path.join(module, "__init__"))
        return self._is_there(folder, LAYERS_MODULE) or not any(self._is_there(folder, other) for other in others)

    def _is_there(self, folder: str, module: str) -> bool:
        return self.names.facts(os.path.join(folder, f"{module}.py")) is not None

    @cached_method
    def is_core(self, path: str) -> bool:
        """Tell whether a file is one of transformers' own."""
        return any(self.core_dots(path, item) for item in self.names.read(path).imports)

    def uses_transformers(self, path: str) -> bool:
        """Tell whether a file imports from transformers."""
        return bool(self._imports(path))

    def needs_transformers(self, path: str) -> bool:
        """Tell whether a file with a model of transformers needs that: unless it imports it only conditionally."""
        imports = self._imports(path)
        return not imports or any(not item.guard for item in imports)

    @cached_method
    def _imports(self, path: str) -> list[Import]:
        imports = self.names.read(path).imports
        return [
            item for item in imports if item.module.partition(".")[0] == "transformers" or self.core_dots(path, item)
        ]

    @cached_method
    def old_requirement(self, path: str) -> str:
        """Return the requirement of a file that admits a release without the layer class; empty if none does."""
        if self.is_core(path):
            return ""
        before, package, _ = path.rpartition(f"{os.sep}transformers{os.sep}models{os.sep}")
        transformers = os.path.join(before, "transformers")
        if package and self._is_there(transformers, "__init__") and not self._is_there(transformers, LAYERS_MODULE):
            return f"transformers<{FIRST_WITH_LAYERS}"
        required = self.required(path).items()
        return next((f"{item} ({file})" for item, file in required if admits_old_releases(item)), "")

    def cleared(self, path: str) -> Mapping[str, tuple[str, str]]:
        """Return the keywords that the layer class of a file's blocks clears before it checkpoints.

        Each is mapped to the first release that clears it and the first that no longer does, each "" if no release
        that may run the file lies beyond it. The class is the tree's own, else that of the releases that the package
        requires, else the installed one.
        """
        names = self._cleared_by_own_class(os.path.dirname(path))
        if names is None and (required := self.required(path)):
            return _cleared_in(required)
        if names is None and self.installed:
            names = self.names.read(self.installed)[CLEARED_HERE]
        return dict.fromkeys(_cleared_in(_DEFAULT_REQUIREMENT) if names is None else names, ("", ""))

    @cached_method
    def _cleared_by_own_class(self, folder: str) -> tuple[str, ...] | None:
        """Return what the tree's own layer class clears for the files of a folder; None if it defines none.

        The likeliest folder is searched first.
        """
        package, models, _ = f"{folder}{os.sep}".rpartition(f"{os.sep}models{os.sep}")
        folders = [package] if models else []
        for _ in range(_FOLDERS_SEARCHED):
            folders.append(folder)
            folder = os.path.dirname(folder)
        by_folder = (self.names.read(os.path.join(folder, f"{LAYERS_MODULE}.py"))[CLEARED_HERE] for folder in folders)
        return next((cleared for cleared in by_folder if cleared is not None), None)


def _cleared_in(requirements: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the keywords that some admitted release clears, each with its first and end release.

    Either is "" if the requirements rule out all releases beyond it.
    """
    cleared = {} if only_before(CLEARS_SINCE, requirements) else CLEARED
    return {
        name: (
            "" if not first or only_since(first, requirements) else first,
            "" if not end or only_before(end, requirements) else end,
        )
        for name, (first, end) in cleared.items()
        if not (first and only_before(first, requirements)) and not (end and only_since(end, requirements))
    }
