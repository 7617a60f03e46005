"""What builds are instances of, and what they hold: attributes, makers and containers followed to their classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ckpt_surgery.codemods.facts.file_facts import Build, Maker
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.classes import ClassRef, External, Target, renames
from ckpt_surgery.codemods.tree.names import TreeNames

_FUEL = 3000
"""Steps into containers for one question. Where a class's attributes are all made of one another the ways through
them are without number, and none of them leads to a block."""
_DEEPEST = 12
"""Builds nested deeper than this are not followed."""


class BuildResolver:
    """Follows builds for one question at a time: call `begin` before each.

    In all methods `user` is the class whose `self` is asked, and `owner` the one of its base chain that has the
    build: what a name means is decided in the owner's file.
    """

    def __init__(self, names: TreeNames, bases: BaseChains) -> None:
        self.names = names
        self.bases = bases
        self._fuel = _FUEL
        self._active: set[tuple[ClassRef, str]] = set()
        """What is being followed: builds that are made of one another end here."""
        self._items: dict[tuple[ClassRef, ClassRef, Build], tuple[tuple[ClassRef, Build], ...]] = {}
        self._classes: dict[tuple[ClassRef, ClassRef, Build], tuple[Target, ...]] = {}
        self._elsewhere: dict[tuple[ClassRef, str], ClassRef] = {}

    def begin(self) -> None:
        """A new question has all the steps that a question may take."""
        self._fuel = _FUEL

    def items(self, user: ClassRef, owner: ClassRef, built: Build, depth: int = 0) -> Iterator[tuple[ClassRef, Build]]:
        """What a build holds, one step into a container."""
        self._fuel -= 1
        if depth > _DEEPEST or self._fuel < 0:
            return
        match built.kind:
            case "container":
                for item in built.items:
                    if item.kind == "spread":
                        yield from self.items(user, owner, item.items[0], depth + 1)
                    else:
                        yield owner, item
            case "choice":
                for item in built.items:
                    yield from self.items(user, owner, item, depth + 1)
            case "element":
                for item in built.items:
                    for inner_owner, inner in self.items(user, owner, item, depth + 1):
                        yield from self.items(user, inner_owner, inner, depth + 1)
            case "member":
                for target_owner, source in self._members(user, owner, built, depth):
                    yield from self.items(target_owner, target_owner, source, depth + 1)
            case "attribute" | "maker" | "class":
                key = (user, owner, built)
                active = (owner, built.name)
                if key not in self._items and active not in self._active:
                    self._active.add(active)
                    self._items[key] = tuple(
                        item
                        for source_owner, source in self._behind(owner, built)
                        for item in self.items(user, source_owner, source, depth + 1)
                    )
                    self._active.discard(active)
                yield from self._items.get(key, ())

    def classes(self, user: ClassRef, owner: ClassRef, built: Build, depth: int = 0) -> Iterator[Target]:
        """The classes that a build is an instance of."""
        if depth > _DEEPEST:
            return
        match built.kind:
            case "class":
                yield from self._of_class(user, owner, built, depth)
            case "choice":
                for item in built.items:
                    yield from self.classes(user, owner, item, depth + 1)
            case "element":
                for item in built.items:
                    for inner_owner, inner in self.items(user, owner, item, depth + 1):
                        yield from self.classes(user, inner_owner, inner, depth + 1)
                    if item.kind == "class":
                        yield from self.names.named(owner.path, item.name)
            case "member":
                for target_owner, source in self._members(user, owner, built, depth):
                    yield from self.classes(target_owner, target_owner, source, depth + 1)
            case "attribute" | "maker":
                key = (user, owner, built)
                active = (owner, built.name)
                if key not in self._classes and active not in self._active:
                    self._active.add(active)
                    self._classes[key] = tuple(
                        target
                        for source_owner, source in self._behind(owner, built)
                        for target in self.classes(user, source_owner, source, depth + 1)
                    )
                    self._active.discard(active)
                yield from self._classes.get(key, ())

    def _of_class(self, user: ClassRef, owner: ClassRef, built: Build, depth: int) -> Iterator[Target]:
        """The class of a name, or what the function of that name returns."""
        named = self._renamed(user, owner, built.name) or self.names.named(owner.path, built.name)
        if named:
            yield from named
            return
        returned = tuple(self._returned(owner, built))
        for source_owner, source in returned:
            yield from self.classes(user, source_owner, source, depth + 1)
        if not returned:
            yield External(built.name, "")

    def _members(self, user: ClassRef, owner: ClassRef, built: Build, depth: int) -> Iterator[tuple[ClassRef, Build]]:
        """What an attribute of other modules is built from, with the class that says so."""
        for target in self.classes(user, owner, built.items[0], depth + 1):
            if isinstance(target, ClassRef):
                yield from self.bases.attribute(target, built.name)

    def _behind(self, owner: ClassRef, built: Build) -> Iterable[tuple[ClassRef, Build]]:
        """What an attribute, a maker or a function is built from."""
        if built.kind == "attribute":
            return self.bases.attribute(owner, built.name)
        return self._returned(owner, built)

    def _returned(self, owner: ClassRef, built: Build) -> Iterator[tuple[ClassRef, Build]]:
        """What a method or function that returns modules returns, given what this call gives it."""
        if built.kind == "maker":
            for ancestor in self.bases.lineage(owner):
                for maker in ancestor.cls.makers:
                    if maker.name == built.name:
                        yield ancestor, _called(maker, built)
                for name, value in ancestor.cls.class_values:
                    if name == built.name:
                        yield ancestor, value
            return
        place = self.names.function(owner.path, built.name)
        if place:
            path, function = place
            there = self.names.facts(path)
            for maker in there.makers if there else ():
                if maker.name == function:
                    yield self._in_file(owner, path), _called(maker, built)
        facts = self.names.facts(owner.path)
        for name, value in facts.values if facts else ():
            if name == built.name:
                yield owner, value

    def _in_file(self, owner: ClassRef, path: str) -> ClassRef:
        """The owner of what a function of another file returns: names mean there what that file says."""
        if path == owner.path:
            return owner
        return self._elsewhere.setdefault((owner, path), ClassRef(path, owner.cls))

    def _renamed(self, user: ClassRef, owner: ClassRef, name: str) -> tuple[Target, ...]:
        """A modular file inherits `BarModel` as `FooModel`: its `BarLayer` is then this file's `FooLayer`."""
        if owner.path == user.path or owner.name == user.name:
            return ()
        for old, new in renames(owner.name, user.name):
            if name.startswith(old):
                return tuple(self.names.defined(user.path, new + name.removeprefix(old)))
        return ()


def _called(maker: Maker, built: Build) -> Build:
    """What a maker returns where it is called with the items of a build."""
    return _with_parameters(maker.returns, dict(zip(maker.params, built.items, strict=False)))


def _with_parameters(built: Build, values: Mapping[str, Build]) -> Build:
    """A build in which each parameter of a maker is replaced by its value."""
    if built.kind == "param":
        return values.get(built.name, Build("unknown"))
    if not values or not built.items:
        return built
    items = tuple(_with_parameters(item, values) for item in built.items)
    replaced = Build(built.kind, built.name, items, built.span)
    return Build("unknown") if replaced.is_large() else replaced
