"""What classes hold: attributes, elements of containers, and everything that models are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, AttributePath, Build
from ckpt_surgery.codemods.tree.answers import kept, reachable
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.builds import BuildResolver
from ckpt_surgery.codemods.tree.classes import ClassRef, Target
from ckpt_surgery.codemods.tree.names import TreeNames
from ckpt_surgery.model_patches.release_names import CLAIM

_DEEPEST_STACK = 5
"""Containers nested deeper than this hold no blocks."""


@dataclass(eq=False)
class Containers:
    """What classes hold."""

    names: TreeNames
    bases: BaseChains

    @cached_property
    def _resolver(self) -> BuildResolver:
        return BuildResolver(self.names, self.bases)

    @cached_property
    def holders(self) -> dict[str, list[tuple[ClassRef, str]]]:
        """For each class name, the checked classes and attributes that are built from it."""
        holders: dict[str, list[tuple[ClassRef, str]]] = {}
        for ref in self.names.checked_classes():
            for attribute, built in ref.cls.attributes:
                for name in built.class_names():
                    holders.setdefault(name, []).append((ref, attribute))
        return holders

    @kept
    def reached(self, ref: ClassRef, path: AttributePath) -> tuple[Target, ...]:
        """The classes of the modules at a path from `self`."""
        here: list[tuple[ClassRef, Build]] = []
        targets: tuple[Target, ...] = (ref,)
        for step in path:
            if step == ELEMENT:
                here = [item for built in here for item in self._resolver.items(ref, *built)]
            else:
                modules = (target for target in targets if isinstance(target, ClassRef))
                here = [attribute for module in modules for attribute in self.bases.attribute(module, step)]
            targets = tuple(dict.fromkeys(target for built in here for target in self._resolver.classes(ref, *built)))
        return targets if path else ()

    def classes_at(self, ref: ClassRef, paths: Iterable[AttributePath]) -> tuple[ClassRef, ...]:
        """The classes of the tree at some paths from `self`."""
        targets = dict.fromkeys(target for path in paths for target in self.reached(ref, path))
        return tuple(target for target in targets if isinstance(target, ClassRef))

    @cached_property
    def supported(self) -> frozenset[ClassRef]:
        """Every class that a model with `supports_gradient_checkpointing = True` is made of, itself included."""
        classes = [ref for path in tuple(self.names.files) for ref in self.names.classes(path)]
        claiming = [ref for ref in classes if self.bases.flag(ref, CLAIM) == "True"]
        return frozenset(reachable(claiming, self._supported_parts))

    def _supported_parts(self, ref: ClassRef) -> Iterator[ClassRef]:
        return (part for part in self.parts(ref) if self.bases.flag(part, CLAIM) in (None, "True"))

    def learns(self, ref: ClassRef, path: AttributePath) -> bool:
        """Whether what is at a path from `self` is a parameter, or a module that has some."""
        *above, last = (step for step in path if step != ELEMENT)
        holders = self.classes_at(ref, [tuple(above)]) if above else (ref,)
        if any(last in base.cls.learned for holder in holders for base in self.bases.lineage(holder)):
            return True
        modules = self.with_parts(*self.classes_at(ref, [path]))
        return any(base.cls.learned for module in modules for base in self.bases.lineage(module))

    def with_parts(self, *refs: ClassRef) -> tuple[ClassRef, ...]:
        """Some classes and everything that they are made of, at any depth."""
        return reachable(refs, self.parts)

    @kept
    def parts(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """The classes of the tree that a class's attributes hold, directly or in containers."""
        return tuple(target for target in self.all_parts(ref) if isinstance(target, ClassRef))

    @kept
    def all_parts(self, ref: ClassRef) -> tuple[Target, ...]:
        """The same, classes outside the tree included."""
        return tuple(dict.fromkeys(self._all_parts(ref)))

    def _all_parts(self, ref: ClassRef) -> Iterator[Target]:
        level = {(owner, built): None for _, owner, built in self.bases.attributes(ref)}
        for _ in range(_DEEPEST_STACK):
            for build in level:
                yield from self._resolver.classes(ref, *build)
            level = dict.fromkeys(item for build in level for item in self._resolver.items(ref, *build))
