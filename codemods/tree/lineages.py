"""Find which classes are copies of one another: in a modular file, the generated file, and the parent's file.

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
from ckpt_surgery.codemods.tree.caching import reachable
from ckpt_surgery.codemods.tree.classes import ClassRef, renames
from ckpt_surgery.codemods.tree.names import TreeNames


class _Twins(NamedTuple):
    """Classes with names that begin with `prefix` are copies of those in `other_path` that begin with `other_prefix`.

    A class is not a copy if the file `modular` itself defines it, with a name that begins with `child_prefix`.
    """

    prefix: str
    other_path: str
    other_prefix: str
    modular: str
    child_prefix: str


class Lineages:
    """The copies among a tree's classes."""

    def __init__(self, names: TreeNames) -> None:
        self.names = names
        self._beside: dict[str, str] = {}
        """Maps a modular file to its generated file, and back."""
        self._twins: dict[str, dict[_Twins, None]] = defaultdict(dict)
        for path in names.checked:
            modular = os.path.join(os.path.dirname(path), names.read(path)[GENERATED_FROM])
            if names.read(path)[GENERATED_FROM] and (modular in names.files or modular in names.unparsed):
                self._beside |= {path: modular, modular: path}
                self._descend(path, modular)

    def _descend(self, generated: str, modular: str) -> None:
        """Note what a generated file copies from the parents of the classes in its modular file."""
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
            rest = ref.name.removeprefix(twins.prefix)
            if ref.name.startswith(twins.prefix) and not self.names.defined(twins.modular, twins.child_prefix + rest):
                yield from self.names.defined(twins.other_path, twins.other_prefix + rest)
