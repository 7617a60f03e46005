"""The files of a tree joined: names to classes, base chains, what stacks hold, which models checkpoint.

Answers are three-valued where the tree may not tell: a base class outside it is `UNKNOWN`, not a guess.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, Build, FileFacts, Forward, Path
from ckpt_surgery.codemods.tree.classes import (
    GCL,
    TORCH_PREFIXES,
    Answer,
    External,
    Ref,
    Target,
    is_plain_external,
    renames,
)

_CLEARED_BY_DEFAULT = ("use_cache", "past_key_values", "layer_past")
_NO_MODULES = ("configuration_", "tokenization_", "processing_", "image_processing_", "feature_extraction_")
_FUEL = 3000
"""Steps into containers for one question: in classes whose attributes are all made of one another
the ways to go through them are without number, and none of them leads to a block."""
_DEEPEST = 12
"""Builds nested deeper than this are not followed."""


Loader = Callable[[str], FileFacts | None]


class TreeIndex:
    """An index over `files` (path to facts).

    `load` is asked for files that an import names and `files` lacks (a parent model beside a file that
    is checked alone); it returns None where there is none. `texts` gives a file's source, for edits.
    """

    def __init__(self, files: Mapping[str, FileFacts], load: Loader, texts: Callable[[str], str]) -> None:
        self.files = dict(files)
        self.checked = tuple(files)
        self.text = texts
        self._load = load
        self._refs: dict[str, dict[str, list[Ref]]] = {}
        self._names: dict[tuple[str, str], tuple[Target, ...]] = {}
        self._mro: dict[Ref, tuple[Target, ...]] = {}
        self._gcl: dict[Ref, Answer] = {}
        self._attributes: dict[Ref, dict[str, tuple[Build, ...]]] = {}
        self._fuel = _FUEL
        self._active: set[tuple[Ref, str]] = set()
        self._named_items: dict[tuple[Ref, Ref, Build], tuple[tuple[Ref, Build], ...]] = {}
        self._named_classes: dict[tuple[Ref | None, Ref, Build], tuple[Target, ...]] = {}
        self._parts: dict[Ref, tuple[Target, ...]] = {}
        self._paths: dict[tuple[Ref, Path], tuple[Target, ...]] = {}

    # -- classes and names

    def facts(self, path: str) -> FileFacts | None:
        """The facts of a file, loaded when an import leads there for the first time."""
        if path not in self.files:
            loaded = self._load(path)
            if loaded is None:
                return None
            self.files[path] = loaded
        return self.files[path]

    def refs(self, path: str) -> list[Ref]:
        """Every class of a file, in order."""
        return [ref for refs in self._by_name(path).values() for ref in refs]

    def checked_refs(self) -> Iterator[Ref]:
        """Every class of the files that are checked (not of those loaded to understand them)."""
        for path in self.checked:
            yield from self.refs(path)

    def _by_name(self, path: str) -> dict[str, list[Ref]]:
        known = self._refs.get(path)
        if known is None:
            known = {}
            facts = self.facts(path)
            for cls in facts.classes if facts else ():
                known.setdefault(cls.name, []).append(Ref(path, cls))
            self._refs[path] = known
        return known

    def named(self, path: str, name: str) -> tuple[Target, ...]:
        """What `name` may mean at module level of a file: classes of the tree, or external ones."""
        key = (path, name)
        if key not in self._names:
            self._names[key] = ()  # an import cycle ends here
            self._names[key] = tuple(self._lookup(path, name))
        return self._names[key]

    def _lookup(self, path: str, name: str) -> Iterator[Target]:
        head, _, rest = name.partition(".")
        if name.rpartition(".")[2] == GCL:
            yield External(GCL, "transformers.modeling_layers")
            return
        local = self._by_name(path).get(name)
        if local:
            yield from local
        facts = self.facts(path)
        for item in facts.imports if facts else ():
            if item.name != head:
                continue
            if rest or not item.original:
                dots = item.module if not item.original else f"{item.module}.{item.original}"
                yield from self._imported(path, dots if rest else item.module, rest or name)
            else:
                yield from self._imported(path, item.module, item.original)
        if not local:
            for value_name, built in facts.values if facts else ():
                if value_name == name:
                    yield from self._classes(path, built, None)

    def _imported(self, path: str, module: str, name: str) -> Iterator[Target]:
        target = self._module_file(path, module)
        if target and self.facts(target) is not None:
            found = self.named(target, name)
            if found:
                yield from found
                return
        yield External(name, module)

    def _module_file(self, path: str, module: str) -> str | None:
        """The file of a relative import, or of `transformers.models.x.y` beside the tree's own models."""
        if module.startswith("."):
            dots = len(module) - len(module.lstrip("."))
            folder = path
            for _ in range(dots):
                folder = os.path.dirname(folder)
            inner = module.lstrip(".")
        elif module.startswith("transformers.models."):
            position = path.rfind(f"{os.sep}models{os.sep}")
            folder = path[: position + len(f"{os.sep}models")] if position >= 0 else "transformers"
            inner = module.removeprefix("transformers.models.")
        else:
            return None
        if not inner or (os.path.basename(folder) == "transformers" and not inner.startswith("models.")):
            return None  # transformers' own core is known by name and never read
        if inner.rpartition(".")[2].startswith(_NO_MODULES):
            return None
        return os.path.join(folder, *inner.split(".")) + ".py"

    # -- base chains

    def mro(self, ref: Ref) -> tuple[Target, ...]:
        """The class and all that it inherits, nearest first, externals included."""
        if ref not in self._mro:
            self._mro[ref] = (ref,)
            chain: list[Target] = [ref]
            for base in ref.cls.bases:
                for target in self.named(ref.path, base) or (External(base, ""),):
                    if target is ref:
                        continue
                    for inner in self.mro(target) if isinstance(target, Ref) else (target,):
                        if inner not in chain:
                            chain.append(inner)
            self._mro[ref] = tuple(chain)
        return self._mro[ref]

    def lineage(self, ref: Ref) -> Iterator[Ref]:
        """The part of the base chain that the tree holds."""
        return (target for target in self.mro(ref) if isinstance(target, Ref))

    def heirs(self, ref: Ref) -> tuple[Ref, ...]:
        """Every checked class that inherits from a class."""
        return tuple(self._heirs.get(ref, ()))

    @cached_property
    def _heirs(self) -> dict[Ref, list[Ref]]:
        found: dict[Ref, list[Ref]] = {}
        for one in self.checked_refs():
            for ancestor in self.lineage(one):
                if ancestor is not one:
                    found.setdefault(ancestor, []).append(one)
        return found

    @cached_property
    def holders(self) -> dict[str, list[tuple[Ref, str]]]:
        """For each class name, the checked classes and attributes that are built from it."""
        found: dict[str, list[tuple[Ref, str]]] = {}
        for ref in self.checked_refs():
            for attribute, built in ref.cls.attributes:
                for name in built.class_names():
                    found.setdefault(name, []).append((ref, attribute))
        return found

    def is_layer(self, ref: Ref) -> Answer:
        """Whether the class is a GradientCheckpointingLayer."""
        if ref not in self._gcl:
            externals = [target for target in self.mro(ref) if isinstance(target, External)]
            if any(external.name == GCL for external in externals):
                self._gcl[ref] = Answer.YES
            elif all(map(is_plain_external, externals)):
                self._gcl[ref] = Answer.NO
            else:
                self._gcl[ref] = Answer.UNKNOWN
        return self._gcl[ref]

    def is_module(self, ref: Ref) -> bool:
        """Whether the class is a torch module, as far as the tree tells."""
        externals = [target.name for target in self.mro(ref) if isinstance(target, External)]
        return any(
            name == GCL or name.endswith(("Module", "PreTrainedModel")) or name.startswith(TORCH_PREFIXES)
            for name in externals
        )

    def flag(self, ref: Ref, name: str) -> str | None:
        """A class attribute's text, inherited or own."""
        for ancestor in self.lineage(ref):
            for key, value in ancestor.cls.flags:
                if key == name:
                    return value
        return None

    def forward(self, ref: Ref) -> tuple[Ref, Forward] | None:
        """The forward that runs, and the class that defines it."""
        for ancestor in self.lineage(ref):
            if ancestor.cls.forward:
                return ancestor, ancestor.cls.forward
        return None

    # -- what attributes hold

    def attribute(self, ref: Ref, name: str) -> tuple[tuple[Ref, Build], ...]:
        """What `self.name` is built from, with the class that says so (the nearest one that does)."""
        for ancestor in self.lineage(ref):
            if ancestor not in self._attributes:
                by_name: dict[str, tuple[Build, ...]] = {}
                for key, built in ancestor.cls.attributes:
                    by_name[key] = (*by_name.get(key, ()), built)
                self._attributes[ancestor] = by_name
            own = self._attributes[ancestor]
            found = own.get(name)
            if found:
                return tuple((ancestor, built) for built in found)
        return ()

    def attributes(self, ref: Ref) -> Iterator[tuple[str, Ref, Build]]:
        """Every attribute of a class and its ancestors: name, the class that sets it, what it is built from."""
        seen: set[str] = set()
        for ancestor in self.lineage(ref):
            names = {name for name, _ in ancestor.cls.attributes}
            for name, built in ancestor.cls.attributes:
                if name not in seen:
                    yield name, ancestor, built
            seen |= names

    def reached(self, ref: Ref, path: Path) -> tuple[Target, ...]:
        """The classes of the modules at a path from `self`."""
        key = (ref, path)
        if key not in self._paths:
            self._paths[key] = ()
            self._fuel = _FUEL
            self._paths[key] = tuple(dict.fromkeys(self._reach(ref, path)))
        return self._paths[key]

    def _reach(self, ref: Ref, path: Path) -> Iterator[Target]:
        here: list[tuple[Ref, Build]] = []
        modules: list[Ref] = [ref]
        for step in path:
            if step == ELEMENT:
                here = [item for owner, built in here for item in self._items(ref, owner, built)]
            else:
                here = [found for module in modules for found in self.attribute(module, step)]
            modules = [target for target in self._flat(ref, here) if isinstance(target, Ref)]
        if path:
            yield from self._flat(ref, here)

    def _flat(self, user: Ref, built: Iterable[tuple[Ref, Build]]) -> Iterator[Target]:
        for owner, one in built:
            yield from self._classes(owner.path, one, owner, user)

    def _items(self, user: Ref, owner: Ref, built: Build, depth: int = 0) -> Iterator[tuple[Ref, Build]]:
        """One step into a container."""
        self._fuel -= 1
        if depth > _DEEPEST or self._fuel < 0:
            return
        match built.kind:
            case "container":
                for item in built.items:
                    if item.kind == "spread":
                        yield from self._items(user, owner, item.items[0], depth + 1)
                    else:
                        yield owner, item
            case "choice":
                for item in built.items:
                    yield from self._items(user, owner, item, depth + 1)
            case "element":
                for item in built.items:
                    for inner_owner, inner in self._items(user, owner, item, depth + 1):
                        yield from self._items(user, inner_owner, inner, depth + 1)
            case "attribute" | "maker" | "class":
                key = (user, owner, built)
                active = (owner, built.name)
                if key not in self._named_items and active not in self._active:
                    self._active.add(active)  # what is made of one another ends here
                    self._named_items[key] = tuple(
                        item
                        for found_owner, found in self._behind(owner, built)
                        for item in self._items(user, found_owner, found, depth + 1)
                    )
                    self._active.discard(active)
                yield from self._named_items.get(key, ())

    def _behind(self, owner: Ref, built: Build) -> Iterable[tuple[Ref, Build]]:
        """What an attribute, a maker or a function is built from."""
        return self.attribute(owner, built.name) if built.kind == "attribute" else self._made(owner, built)

    def _made(self, owner: Ref, built: Build) -> Iterator[tuple[Ref, Build]]:
        """What a method or function that returns modules returns, given what this call gives it."""
        if built.kind == "maker":
            for ancestor in self.lineage(owner):
                for maker in ancestor.cls.makers:
                    if maker.name == built.name:
                        yield ancestor, _given(maker.returns, dict(zip(maker.params, built.items, strict=False)))
                for name, value in ancestor.cls.class_values:
                    if name == built.name:
                        yield ancestor, value
            return
        facts = self.facts(owner.path)
        for maker in facts.makers if facts else ():
            if maker.name == built.name:
                yield owner, _given(maker.returns, dict(zip(maker.params, built.items, strict=False)))
        for name, value in facts.values if facts else ():
            if name == built.name:
                yield owner, value

    def _classes(
        self, path: str, built: Build, owner: Ref | None, user: Ref | None = None, depth: int = 0
    ) -> Iterator[Target]:
        """The classes that a build is an instance of."""
        if depth > _DEEPEST:
            return
        match built.kind:
            case "class":
                renamed = self._renamed(owner, user, built.name)
                found = renamed or self.named(path, built.name)
                if found:
                    yield from found
                elif owner and any(True for _ in self._made(owner, built)):
                    for maker, made in self._made(owner, built):
                        yield from self._classes(maker.path, made, maker, user, depth + 1)
                else:
                    yield External(built.name, "")
            case "choice":
                for item in built.items:
                    yield from self._classes(path, item, owner, user, depth + 1)
            case "element" if owner and user:
                for item in built.items:
                    for inner_owner, inner in self._items(user, owner, item):
                        yield from self._classes(inner_owner.path, inner, inner_owner, user, depth + 1)
                    if item.kind == "class":
                        yield from self.named(path, item.name)
            case "container" if owner is None:
                for item in built.items:
                    yield from self._classes(path, item, owner, user, depth + 1)
            case "attribute" | "maker" if owner:
                key = (user, owner, built)
                active = (owner, built.name)
                if key not in self._named_classes and active not in self._active:
                    self._active.add(active)
                    self._named_classes[key] = tuple(
                        target
                        for found_owner, found in self._behind(owner, built)
                        for target in self._classes(found_owner.path, found, found_owner, user, depth + 1)
                    )
                    self._active.discard(active)
                yield from self._named_classes.get(key, ())

    def _renamed(self, owner: Ref | None, user: Ref | None, name: str) -> tuple[Target, ...]:
        """A modular file inherits `BarModel` as `FooModel`: its `BarLayer` is then this file's `FooLayer`."""
        if owner is None or user is None or owner.path == user.path or owner.name == user.name:
            return ()
        for old, new in renames(owner.name, user.name):
            if name.startswith(old):
                return tuple(self._by_name(user.path).get(new + name.removeprefix(old), ()))
        return ()

    # -- models

    @cached_property
    def supported(self) -> frozenset[Ref]:
        """Every class that a model with `supports_gradient_checkpointing = True` is made of, itself included."""
        return self.parts_of("True")

    def parts_of(self, flag: str) -> frozenset[Ref]:
        """Every class that a model whose flag has this text is made of."""
        models = (ref for path in tuple(self.files) for ref in self.refs(path))
        waiting = [ref for ref in models if self.flag(ref, "supports_gradient_checkpointing") == flag]
        seen: set[Ref] = set(waiting)
        while waiting:
            ref = waiting.pop()
            for part in self.parts(ref):
                if part not in seen and self.flag(part, "supports_gradient_checkpointing") in (None, flag):
                    seen.add(part)
                    waiting.append(part)
        return frozenset(seen)

    def parts(self, ref: Ref) -> tuple[Ref, ...]:
        """The classes of the tree that a class's attributes hold, directly or in containers."""
        return tuple(target for target in self.all_parts(ref) if isinstance(target, Ref))

    def all_parts(self, ref: Ref) -> tuple[Target, ...]:
        """The same, classes outside the tree included."""
        if ref not in self._parts:
            self._fuel = _FUEL
            found: dict[Target, None] = {}
            for _, owner, built in self.attributes(ref):
                found.update(dict.fromkeys(self._deep(ref, owner, built)))
            self._parts[ref] = tuple(found)
        return self._parts[ref]

    def _deep(self, user: Ref, owner: Ref, built: Build) -> Iterator[Target]:
        """The classes that a build is made of, at most four containers deep."""
        level: dict[tuple[Ref, Build], None] = {(owner, built): None}
        for _ in range(5):
            below: dict[tuple[Ref, Build], None] = {}
            for one_owner, one in level:
                yield from self._classes(one_owner.path, one, one_owner, user)
                below.update(dict.fromkeys(self._items(user, one_owner, one)))
            level = below

    def cleared(self, path: str) -> tuple[str, ...]:
        """The keywords that this tree's GradientCheckpointingLayer clears before it checkpoints."""
        position = path.rfind(f"{os.sep}models{os.sep}")
        if position >= 0:
            facts = self.facts(os.path.join(path[:position], "modeling_layers.py"))
            if facts and facts.cleared is not None:
                return facts.cleared
        return _CLEARED_BY_DEFAULT


def _given(built: Build, given: Mapping[str, Build]) -> Build:
    """A maker's result with its parameters replaced by what a call gives."""
    if built.kind == "param":
        return given.get(built.name, Build("unknown"))
    if not given or not built.items:
        return built
    made = Build(built.kind, built.name, tuple(_given(item, given) for item in built.items), built.span)
    return Build("unknown") if made.is_large() else made
