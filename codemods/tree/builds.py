"""What builds are instances of, and what they hold: attributes, makers and containers followed to their classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ckpt_surgery.codemods.facts.file_facts import Build, Maker
from ckpt_surgery.codemods.tree.answers import kept
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.classes import ClassRef, External, Target, renames
from ckpt_surgery.codemods.tree.names import TreeNames

T = TypeVar("T")
_DEEPEST = 12
"""Attributes and makers that lead to one another further than this are not followed."""


@dataclass(eq=False)
class BuildResolver:
    """Follows builds.

    In all methods `user` is the class whose `self` is asked, and `owner` the one of its base chain that has the
    build: what a name means is decided in the owner's file.
    """

    names: TreeNames
    bases: BaseChains
    _following: set[tuple[ClassRef, Build | str]] = field(default_factory=set)
    """Builds that are made of one another end here."""
    _answers: dict[tuple[str, ClassRef, ClassRef, Build], tuple[Any, ...]] = field(default_factory=dict)

    def items(self, user: ClassRef, owner: ClassRef, built: Build) -> Iterator[tuple[ClassRef, Build]]:
        """What a build holds, one step into a container."""
        match built.kind:
            case "container":
                for item in built.items:
                    if item.kind == "spread":
                        yield from self.items(user, owner, item.items[0])
                    else:
                        yield owner, item
            case "choice":
                for item in built.items:
                    yield from self.items(user, owner, item)
            case _:
                yield from self._behind(self.items, user, owner, built)

    def classes(self, user: ClassRef, owner: ClassRef, built: Build) -> Iterator[Target]:
        """The classes that a build is an instance of."""
        match built.kind:
            case "class":
                named = self._renamed(user, owner, built.name) or self.names.named(owner.path, built.name)
                if not named and not any(self._sources(user, owner, built)):
                    named = (External(built.name, ""),)
                yield from named or self._behind(self.classes, user, owner, built)
            case "choice":
                for item in built.items:
                    yield from self.classes(user, owner, item)
            case "element" | "member" | "attribute" | "maker":
                yield from self._behind(self.classes, user, owner, built)
                for item in built.items if built.kind == "element" else ():
                    yield from self.names.named(owner.path, item.name) if item.kind == "class" else ()

    def _behind(
        self, ask: Callable[[ClassRef, ClassRef, Build], Iterable[T]], user: ClassRef, owner: ClassRef, built: Build
    ) -> tuple[T, ...]:
        """What is asked of a build that leads to others, answered by these."""
        key = (ask.__name__, user, owner, built)
        if key not in self._answers:
            step = (owner, built if built.kind in ("element", "member") else built.name)
            if step in self._following or len(self._following) > _DEEPEST:
                return ()
            self._following.add(step)
            answers = (answer for source in self._sources(user, owner, built) for answer in ask(*source))
            self._answers[key] = tuple(dict.fromkeys(answers))
            self._following.discard(step)
        return self._answers[key]

    def _sources(self, user: ClassRef, owner: ClassRef, built: Build) -> Iterator[tuple[ClassRef, ClassRef, Build]]:
        """The builds that a build leads to: what an element may be, or what a function returns where it is called."""
        match built.kind:
            case "element":
                for item in built.items:
                    yield from ((user, *inner) for inner in self.items(user, owner, item))
            case "member":
                targets = self.classes(user, owner, built.items[0])
                for target in (target for target in targets if isinstance(target, ClassRef)):
                    yield from ((setter, setter, value) for setter, value in self.bases.attribute(target, built.name))
            case "attribute":
                yield from ((user, *value) for value in self.bases.attribute(owner, built.name))
            case "maker":
                for base in self.bases.lineage(owner):
                    results = _results(built.name, built, base.cls.makers, base.cls.class_values)
                    yield from ((user, base, result) for result in results)
            case "class":
                path, function = self.names.function(owner.path, built.name) or (owner.path, "")
                there, makers = self._in_file(owner, path), self.names.read(path).makers
                yield from ((user, there, result) for result in _results(function, built, makers, ()))
                values = self.names.read(owner.path).values
                yield from ((user, owner, result) for result in _results(built.name, built, (), values))

    @kept
    def _in_file(self, owner: ClassRef, path: str) -> ClassRef:
        """The owner of what a function of another file returns: names mean there what that file says."""
        return owner if path == owner.path else ClassRef(path, owner.cls)

    def _renamed(self, user: ClassRef, owner: ClassRef, name: str) -> tuple[Target, ...]:
        """A modular file inherits `BarModel` as `FooModel`: its `BarLayer` is then this file's `FooLayer`."""
        if owner.path == user.path or owner.name == user.name:
            return ()
        for old, new in renames(owner.name, user.name):
            if name.startswith(old):
                return tuple(self.names.defined(user.path, new + name.removeprefix(old)))
        return ()


def _results(name: str, call: Build, makers: Iterable[Maker], values: Iterable[tuple[str, Build]]) -> Iterator[Build]:
    """What the makers of a name return where they are called with the items of a build, and its values."""
    for maker in makers:
        if maker.name == name:
            yield _with_parameters(maker.returns, dict(zip(maker.params, call.items, strict=False)))
    yield from (value for key, value in values if key == name)


def _with_parameters(built: Build, values: Mapping[str, Build]) -> Build:
    """A build in which each parameter of a maker is replaced by its value."""
    if built.kind == "param":
        return values.get(built.name, Build("unknown"))
    if not values or not built.items:
        return built
    items = tuple(_with_parameters(item, values) for item in built.items)
    replaced = Build(built.kind, built.name, items, built.span)
    return Build("unknown") if replaced.is_large() else replaced
