"""Which classes are the same: that of a modular file, that of the generated file, and those of models that inherit
them under another name.

`class FooModel(BarModel)` in `modular_foo.py` makes the converter copy what BarModel is made of: `FooLayer`
in `modeling_foo.py` is then `BarLayer` of `modeling_bar.py`, and a repair of one without the other would be
undone when the file is generated again.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ckpt_surgery.codemods.providers.copies import GENERATED_FROM
from ckpt_surgery.codemods.tree.classes import ClassRef, renames
from ckpt_surgery.codemods.tree.names import TreeNames


@dataclass(frozen=True, slots=True)
class _Descent:
    """One generated file's descent from a parent file: `old` starts of class names become `new`."""

    parent: str
    modular: str
    generated: str
    old: str
    new: str


class Lineages:
    """The descents of a tree's generated files."""

    def __init__(self, names: TreeNames) -> None:
        self.names = names
        self._by_parent: dict[str, list[_Descent]] = defaultdict(list)
        self._by_generated: dict[str, list[_Descent]] = defaultdict(list)
        self._modular: dict[str, str] = {}
        self._generated: dict[str, str] = {}
        for path in names.checked:
            facts = names.facts(path)
            if facts and facts[GENERATED_FROM]:
                modular = os.path.join(os.path.dirname(path), facts[GENERATED_FROM])
                if modular in names.files:
                    self._modular[path] = modular
                    self._generated[modular] = path
        for generated, modular in self._modular.items():
            for descent in dict.fromkeys(self._descents(generated, modular)):
                self._by_parent[descent.parent].append(descent)
                self._by_generated[generated].append(descent)

    def _descents(self, generated: str, modular: str) -> Iterator[_Descent]:
        for child in self.names.classes(modular):
            for base in child.cls.bases:
                for parent in self.names.named(modular, base):
                    if isinstance(parent, ClassRef) and parent.path != modular:
                        for old, new in renames(parent.name, child.name):
                            if old and new:
                                yield _Descent(parent.path, modular, generated, old, new)

    def same(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """Every class that is `ref` in another file, itself first."""
        twins: dict[ClassRef, None] = {ref: None}
        waiting = [ref]
        while waiting:
            for twin in self._next_to(waiting.pop()):
                if twin not in twins:
                    twins[twin] = None
                    waiting.append(twin)
        return tuple(twins)

    def _next_to(self, ref: ClassRef) -> Iterator[ClassRef]:
        other = self._modular.get(ref.path) or self._generated.get(ref.path)
        if other:
            yield from self._named(other, ref.name)
        for descent in self._by_generated.get(ref.path, ()):
            if ref.name.startswith(descent.new) and not self._named(descent.modular, ref.name):
                yield from self._named(descent.parent, descent.old + ref.name.removeprefix(descent.new))
        for descent in self._by_parent.get(ref.path, ()):
            name = descent.new + ref.name.removeprefix(descent.old)
            if ref.name.startswith(descent.old) and not self._named(descent.modular, name):
                yield from self._named(descent.generated, name)

    def _named(self, path: str, name: str) -> list[ClassRef]:
        return self.names.defined(path, name)
