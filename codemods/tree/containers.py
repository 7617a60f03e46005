"""Resolve what classes hold: attributes, elements of containers, and everything that models are made of."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, AttributePath, Build, Maker
from ckpt_surgery.codemods.facts.file_reader import maker_of
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.caching import cached_method, reachable
from ckpt_surgery.codemods.tree.classes import ClassRef, External, Target, renames
from ckpt_surgery.codemods.tree.names import TreeNames
from ckpt_surgery.model_patches.release_names import CLAIM

T = TypeVar("T")
_MAX_CHAIN = 12
"""Longer chains of attributes and makers that lead to one another are not followed."""
_MAX_NESTING = 5
"""Containers nested deeper than this hold no blocks."""


@dataclass(eq=False)
class Containers:
    """What the classes of a tree hold."""

    names: TreeNames
    bases: BaseChains
    function_node: Callable[[str, str], ast.FunctionDef | None]
    _following: set[tuple[ClassRef, Build | str]] = field(default_factory=set)
    """What is being resolved now: a build that leads back to it ends there."""
    _resolved: dict[tuple[str, ClassRef, ClassRef, Build], tuple[Any, ...]] = field(default_factory=dict)

    @cached_property
    def holders(self) -> dict[str, list[tuple[ClassRef, str]]]:
        """For each class name, the attributes of checked classes that are built from it."""
        holders: dict[str, list[tuple[ClassRef, str]]] = {}
        for ref in self.names.checked_classes():
            for attribute, built in ref.cls.attributes:
                for name in built.class_names():
                    holders.setdefault(name, []).append((ref, attribute))
        return holders

    @cached_method
    def reached(self, ref: ClassRef, path: AttributePath) -> tuple[Target, ...]:
        """Return the classes of the modules at a path from `self`."""
        builds: list[tuple[ClassRef, Build]] = []
        targets: tuple[Target, ...] = (ref,)
        for step in path:
            if step == ELEMENT:
                builds = [item for built in builds for item in self._items(ref, *built)]
            else:
                modules = (target for target in targets if isinstance(target, ClassRef))
                builds = [attribute for module in modules for attribute in self.bases.attribute(module, step)]
            targets = tuple(dict.fromkeys(target for built in builds for target in self._classes(ref, *built)))
        return targets if path else ()

    def classes_at(self, ref: ClassRef, paths: Iterable[AttributePath]) -> tuple[ClassRef, ...]:
        """Return the classes of the tree at some paths from `self`."""
        targets = dict.fromkeys(target for path in paths for target in self.reached(ref, path))
        return tuple(target for target in targets if isinstance(target, ClassRef))

    @cached_property
    def supported(self) -> frozenset[ClassRef]:
        """Every class that a model with `supports_gradient_checkpointing = True` is made of, itself included."""
        classes = [ref for path in tuple(self.names.files) for ref in self.names.classes(path)]
        claiming = [ref for ref in classes if self.bases.claims(ref)]
        return frozenset(reachable(claiming, self._supported_parts))

    def _supported_parts(self, ref: ClassRef) -> Iterator[ClassRef]:
        return (part for part in self.parts(ref) if self.bases.flag(part, CLAIM) in (None, "True"))

    def has_parameters(self, ref: ClassRef, path: AttributePath) -> bool:
        """Tell whether what is at a path from `self` is a parameter, or a module that has some."""
        *above, last = (step for step in path if step != ELEMENT)
        holders = self.classes_at(ref, [tuple(above)]) if above else (ref,)
        if any(last in base.cls.learned for holder in holders for base in self.bases.lineage(holder)):
            return True
        modules = self.with_parts(*self.classes_at(ref, [path]))
        return any(base.cls.learned for module in modules for base in self.bases.lineage(module))

    def with_parts(self, *refs: ClassRef) -> tuple[ClassRef, ...]:
        """Return some classes and everything that they are made of, at any depth."""
        return reachable(refs, self.parts)

    def block_and_parts(self, block: ClassRef) -> Iterator[ClassRef]:
        """Yield a block, and then everything that it is made of, in the order of the source."""
        yield block
        yield from sorted(set(self.with_parts(block)) - {block}, key=lambda ref: (ref.path, ref.cls.span.line))

    @cached_method
    def parts(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """Return the classes of the tree that a class's attributes hold, directly or in containers."""
        return tuple(target for target in self.all_parts(ref) if isinstance(target, ClassRef))

    @cached_method
    def all_parts(self, ref: ClassRef) -> tuple[Target, ...]:
        """Return what a class's attributes hold, classes outside the tree included."""
        parts: dict[Target, None] = {}
        level = {(owner, built): None for _, owner, built in self.bases.attributes(ref)}
        for _ in range(_MAX_NESTING):
            parts.update((target, None) for build in level for target in self._classes(ref, *build))
            level = dict.fromkeys(item for build in level for item in self._items(ref, *build))
        return tuple(parts)

    # The methods below resolve builds. `user` is the class whose attribute is asked for, `owner` the class of its base
    # chain that sets it. Names are looked up in the owner's file.

    def _items(self, user: ClassRef, owner: ClassRef, built: Build) -> Iterator[tuple[ClassRef, Build]]:
        """Yield what a build holds, one step into a container."""
        match built.kind:
            case "container":
                for item in built.items:
                    if item.kind == "spread":
                        yield from self._items(user, owner, item.items[0])
                    else:
                        yield owner, item
            case "choice":
                for item in built.items:
                    yield from self._items(user, owner, item)
            case _:
                yield from self._behind(self._items, user, owner, built)

    def _classes(self, user: ClassRef, owner: ClassRef, built: Build) -> Iterator[Target]:
        """Yield the classes that a build is an instance of."""
        match built.kind:
            case "class":
                named = self._renamed(user, owner, built.name) or self.names.named(owner.path, built.name)
                if not named and not any(self._sources(user, owner, built)):
                    named = (External(built.name, ""),)
                yield from named or self._behind(self._classes, user, owner, built)
            case "choice":
                for item in built.items:
                    yield from self._classes(user, owner, item)
            case "element" | "member" | "attribute" | "maker":
                yield from self._behind(self._classes, user, owner, built)
                for item in built.items if built.kind == "element" else ():
                    yield from self.names.named(owner.path, item.name) if item.kind == "class" else ()

    def _behind(
        self, ask: Callable[[ClassRef, ClassRef, Build], Iterable[T]], user: ClassRef, owner: ClassRef, built: Build
    ) -> tuple[T, ...]:
        """Return what `ask` yields for the builds that this one refers to, each result once."""
        key = (ask.__name__, user, owner, built)
        if key not in self._resolved:
            step = (owner, built if built.kind in ("element", "member") else built.name)
            if step in self._following or len(self._following) > _MAX_CHAIN:
                return ()
            self._following.add(step)
            results = (result for source in self._sources(user, owner, built) for result in ask(*source))
            self._resolved[key] = tuple(dict.fromkeys(results))
            self._following.discard(step)
        return self._resolved[key]

    def _sources(self, user: ClassRef, owner: ClassRef, built: Build) -> Iterator[tuple[ClassRef, ClassRef, Build]]:
        """Yield the builds that one refers to: what an element may be, or what a called function returns."""
        match built.kind:
            case "element":
                for item in built.items:
                    yield from ((user, *inner) for inner in self._items(user, owner, item))
            case "member":
                targets = self._classes(user, owner, built.items[0])
                for target in (target for target in targets if isinstance(target, ClassRef)):
                    yield from ((setter, setter, value) for setter, value in self.bases.attribute(target, built.name))
            case "attribute":
                yield from ((user, *value) for value in self.bases.attribute(owner, built.name))
            case "maker":
                for base in self.bases.lineage(owner):
                    results = _results(built.name, built, base.cls.makers, base.cls.class_values)
                    yield from ((user, base, result) for result in results)
            case "class":
                if place := self.names.function(owner.path, built.name):
                    makers, there = self._makers(*place), self._in_file(owner, place[0])
                    yield from ((user, there, result) for result in _results(place[1], built, makers, ()))
                values = self.names.read(owner.path).values
                yield from ((user, owner, result) for result in _results(built.name, built, (), values))

    @cached_method
    def _makers(self, path: str, name: str) -> tuple[Maker, ...]:
        """Return a function of a file as a maker; empty if it makes no modules."""
        function = self.function_node(path, name)
        maker = maker_of(function) if function else None
        return (maker,) if maker else ()

    @cached_method
    def _in_file(self, owner: ClassRef, path: str) -> ClassRef:
        """Return the owner as if it were in another file: the builds of that file's functions use its names."""
        return owner if path == owner.path else ClassRef(path, owner.cls)

    def _renamed(self, user: ClassRef, owner: ClassRef, name: str) -> tuple[Target, ...]:
        """Return this file's `FooLayer` for the `BarLayer` of a `BarModel` that it inherits as `FooModel`."""
        if owner.path == user.path or owner.name == user.name:
            return ()
        for old, new in renames(owner.name, user.name):
            if name.startswith(old):
                return tuple(self.names.defined(user.path, new + name.removeprefix(old)))
        return ()


def _results(name: str, call: Build, makers: Iterable[Maker], values: Iterable[tuple[str, Build]]) -> Iterator[Build]:
    """Yield what a called name gives: what its makers return for the items of `call`, and the values bound to it."""
    for maker in makers:
        if maker.name == name:
            yield maker.returns.with_parameters(dict(zip(maker.params, call.items, strict=False)))
    yield from (value for key, value in values if key == name)
