"""What the attributes and stacks of classes hold, and so what models are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, AttributePath, Build
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.builds import BuildResolver
from ckpt_surgery.codemods.tree.classes import ClassRef, Target
from ckpt_surgery.codemods.tree.names import TreeNames
from ckpt_surgery.model_patches.release_names import CLAIM

_DEEPEST_STACK = 5
"""Containers nested deeper than this hold no blocks."""


class Containers:
    """What classes hold."""

    def __init__(self, names: TreeNames, bases: BaseChains) -> None:
        self.names = names
        self.bases = bases
        self._resolver = BuildResolver(names, bases)
        self._reached: dict[tuple[ClassRef, AttributePath], tuple[Target, ...]] = {}
        self._parts: dict[ClassRef, tuple[Target, ...]] = {}
        self._learning: dict[ClassRef, bool] = {}

    @cached_property
    def holders(self) -> dict[str, list[tuple[ClassRef, str]]]:
        """For each class name, the checked classes and attributes that are built from it."""
        holders: dict[str, list[tuple[ClassRef, str]]] = {}
        for ref in self.names.checked_classes():
            for attribute, built in ref.cls.attributes:
                for name in built.class_names():
                    holders.setdefault(name, []).append((ref, attribute))
        return holders

    def reached(self, ref: ClassRef, path: AttributePath) -> tuple[Target, ...]:
        """The classes of the modules at a path from `self`."""
        key = (ref, path)
        if key not in self._reached:
            self._reached[key] = ()
            self._resolver.begin()
            self._reached[key] = tuple(dict.fromkeys(self._reach(ref, path)))
        return self._reached[key]

    def classes_at(self, ref: ClassRef, paths: Iterable[AttributePath]) -> tuple[ClassRef, ...]:
        """The classes of the tree at some paths from `self`."""
        targets = dict.fromkeys(target for path in paths for target in self.reached(ref, path))
        return tuple(target for target in targets if isinstance(target, ClassRef))

    def _reach(self, ref: ClassRef, path: AttributePath) -> Iterator[Target]:
        here: list[tuple[ClassRef, Build]] = []
        modules: list[ClassRef] = [ref]
        for step in path:
            if step == ELEMENT:
                here = [item for owner, built in here for item in self._resolver.items(ref, owner, built)]
            else:
                here = [attribute for module in modules for attribute in self.bases.attribute(module, step)]
            modules = [target for target in self._classes(ref, here) if isinstance(target, ClassRef)]
        if path:
            yield from self._classes(ref, here)

    def _classes(self, user: ClassRef, builds: Iterable[tuple[ClassRef, Build]]) -> Iterator[Target]:
        for owner, built in builds:
            yield from self._resolver.classes(user, owner, built)

    @cached_property
    def supported(self) -> frozenset[ClassRef]:
        """Every class that a model with `supports_gradient_checkpointing = True` is made of, itself included."""
        waiting = [ref for path in tuple(self.names.files) for ref in self.names.classes(path) if self._flag(ref)]
        seen: set[ClassRef] = set(waiting)
        while waiting:
            for part in self.parts(waiting.pop()):
                if part not in seen and self.bases.flag(part, CLAIM) in (None, "True"):
                    seen.add(part)
                    waiting.append(part)
        return frozenset(seen)

    def _flag(self, ref: ClassRef) -> bool:
        return self.bases.flag(ref, CLAIM) == "True"

    def learns(self, ref: ClassRef, path: AttributePath) -> bool:
        """Whether what is at a path from `self` is a parameter, or a module that has some."""
        *above, last = (step for step in path if step != ELEMENT)
        holders = self.classes_at(ref, [tuple(above)]) if above else (ref,)
        if any(last in base.cls.learned for holder in holders for base in self.bases.lineage(holder)):
            return True
        return any(map(self._has_parameters, self.classes_at(ref, [path])))

    def _has_parameters(self, ref: ClassRef) -> bool:
        if ref not in self._learning:
            self._learning[ref] = False  # a class that holds itself ends here
            own = any(base.cls.learned for base in self.bases.lineage(ref))
            self._learning[ref] = own or any(map(self._has_parameters, self.parts(ref)))
        return self._learning[ref]

    def parts(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """The classes of the tree that a class's attributes hold, directly or in containers."""
        return tuple(target for target in self.all_parts(ref) if isinstance(target, ClassRef))

    def all_parts(self, ref: ClassRef) -> tuple[Target, ...]:
        """The same, classes outside the tree included."""
        if ref not in self._parts:
            self._resolver.begin()
            parts: dict[Target, None] = {}
            for _, owner, built in self.bases.attributes(ref):
                parts.update(dict.fromkeys(self._deep(ref, owner, built)))
            self._parts[ref] = tuple(parts)
        return self._parts[ref]

    def _deep(self, user: ClassRef, owner: ClassRef, built: Build) -> Iterator[Target]:
        """The classes that a build is made of, and that containers inside it hold."""
        level: dict[tuple[ClassRef, Build], None] = {(owner, built): None}
        for _ in range(_DEEPEST_STACK):
            below: dict[tuple[ClassRef, Build], None] = {}
            for inner_owner, inner in level:
                yield from self._resolver.classes(user, inner_owner, inner)
                below.update(dict.fromkeys(self._resolver.items(user, inner_owner, inner)))
            level = below
