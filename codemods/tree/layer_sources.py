"""Where a file can import the layer class from, if it can at all.

The class came with transformers 4.52: a package that asks for an older release must not import it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator

from ckpt_surgery.codemods.facts.file_facts import Import
from ckpt_surgery.codemods.tree.names import TreeNames

LAYERS = "modeling_layers"
_FIRST = (4, 52)
_CORE = re.compile(r"^(\.{3,})(?!models\b)(\w+)")
_LOWER, _UPPER = frozenset({">=", ">", "==", "===", "~="}), frozenset({"<", "<="})


class LayerSources:
    """The layer classes that the files of a tree can import.

    `required` gives the requirements on transformers that hold for a file, as its package writes them.
    """

    def __init__(self, names: TreeNames, required: Callable[[str], Collection[str]]) -> None:
        self._names = names
        self._required = required
        self._own: dict[tuple[str, str], bool] = {}
        self._outdated: dict[str, str] = {}

    def core_dots(self, path: str, item: Import) -> str:
        """The dots by which an import reaches transformers' own package; empty where it does not.

        Dots mean transformers where its `modeling_layers.py` is, and in a model's folder that lies there alone.
        """
        match = _CORE.match(item.module)
        if match is None or "models" in item.module or "models" not in re.split(r"[/\\]", path):
            return ""
        dots, module = match.groups()
        folder = path
        for _ in dots:
            folder = os.path.dirname(folder)
        key = (folder, module)
        if key not in self._own:
            self._own[key] = self._is_there(folder, LAYERS) or not (
                self._is_there(folder, "__init__")
                or self._is_there(folder, module)
                or self._is_there(os.path.join(folder, module), "__init__")
            )
        return dots if self._own[key] else ""

    def _is_there(self, folder: str, module: str) -> bool:
        return self._names.facts(os.path.join(folder, f"{module}.py")) is not None

    def is_core(self, path: str) -> bool:
        """Whether a file is one of transformers' own."""
        facts = self._names.facts(path)
        return any(self.core_dots(path, item) for item in (facts.imports if facts else ()))

    def uses_transformers(self, path: str) -> bool:
        """Whether a file imports from transformers."""
        return any(self._imports(path))

    def needs_transformers(self, path: str) -> bool:
        """Whether a file that has a model of transformers always imports from there, not under a condition alone."""
        imports = list(self._imports(path))
        return not imports or any(not item.guard for item in imports)

    def _imports(self, path: str) -> Iterator[Import]:
        facts = self._names.facts(path)
        for item in facts.imports if facts else ():
            if item.module.partition(".")[0] == "transformers" or self.core_dots(path, item):
                yield item

    def outdated(self, path: str) -> str:
        """The requirement by which a file may meet a release without the layer class; empty where there is none."""
        if path not in self._outdated:
            self._outdated[path] = self._find_outdated(path)
        return self._outdated[path]

    def _find_outdated(self, path: str) -> str:
        if self.is_core(path):
            return ""
        position = path.rfind(f"{os.sep}transformers{os.sep}models{os.sep}")
        if position >= 0:
            package = os.path.join(path[:position], "transformers")
            if self._is_there(package, "__init__") and not self._is_there(package, LAYERS):
                return "transformers<4.52"
        return next(filter(admits_releases_without_layers, self._required(path)), "")


def admits_releases_without_layers(requirement: str) -> bool:
    """Whether the oldest release that a requirement names is before the first one with the layer class.

    A requirement that names none admits the newest one and says nothing.
    """
    # `verify` reads the rules in environments of others, which have what models need and no more.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    try:
        specifiers = list(Requirement(requirement).specifier)
        lowest = [_release(item.version) for item in specifiers if item.operator in _LOWER]
        highest = [(_release(item.version), item.operator) for item in specifiers if item.operator in _UPPER]
    except (InvalidRequirement, InvalidVersion):
        return False
    too_low = bool(lowest) and max(lowest)[:2] < _FIRST
    return too_low or any(
        release[:2] < _FIRST or (operator == "<" and release == _FIRST) for release, operator in highest
    )


def _release(version: str) -> tuple[int, ...]:
    """The release, without zeros at its end."""
    from packaging.version import Version

    parts = list(Version(version.removesuffix(".*")).release)
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
