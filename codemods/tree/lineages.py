"""Find which classes are the same: in a modular file, in the generated file, and in models that inherit them.

`class FooModel(BarModel)` in `modular_foo.py` makes the converter copy what BarModel is made of: `FooLayer`
in `modeling_foo.py` is then `BarLayer` of `modeling_bar.py`, and a repair of one without the other would be
undone when the file is generated again.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_surgery.codemods.providers.copies import GENERATED_FROM
from ckpt_surgery.codemods.tree.answers import reachable
from ckpt_surgery.codemods.tree.classes import ClassRef, renames
from ckpt_surgery.codemods.tree.names import TreeNames


class _Twins(NamedTuple):
    """The classes whose names begin with `start` are those of the file at `path` whose names begin with `other`.

    That is so unless the modular file defines a class itself, under the name that begins with `new`.
    """

    start: str
    path: str
    other: str
    modular: str
    new: str


class Lineages:
    """The descents of a tree's generated files."""

    def __init__(self, names: TreeNames) -> None:
        self.names = names
        self._beside: dict[str, str] = {}
        """Modular file to generated file, and back."""
        self._twins: dict[str, dict[_Twins, None]] = defaultdict(dict)
        for path in names.checked:
            modular = os.path.join(os.path.dirname(path), names.read(path)[GENERATED_FROM])
            if names.read(path)[GENERATED_FROM] and (modular in names.files or modular in names.unparsed):
                self._beside |= {path: modular, modular: path}
                self._descend(path, modular)

    def _descend(self, generated: str, modular: str) -> None:
        """Note what a generated file has from the parents of the classes in its modular file."""
        for child in self.names.classes(modular):
            for parent in (target for base in child.cls.bases for target in self.names.named(modular, base)):
                if isinstance(parent, ClassRef) and parent.path != modular:
                    for old, new in renames(parent.name, child.name):
                        if old and new:
                            self._twins[generated][_Twins(new, parent.path, old, modular, new)] = None
                            self._twins[parent.path][_Twins(old, generated, new, modular, new)] = None

    def same(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """Return every class that is `ref` in another file, itself first."""
        return reachable([ref], self._next_to)

    def _next_to(self, ref: ClassRef) -> Iterator[ClassRef]:
        if ref.path in self._beside:
            yield from self.names.defined(self._beside[ref.path], ref.name)
        for twins in self._twins.get(ref.path, ()):
            rest = ref.name.removeprefix(twins.start)
            if ref.name.startswith(twins.start) and not self.names.defined(twins.modular, twins.new + rest):
                yield from self.names.defined(twins.path, twins.other + rest)
