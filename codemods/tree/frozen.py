"""Find classes that train a part of what they hold behind frozen modules: its input needs no gradient."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, AttributePath
from ckpt_surgery.codemods.facts.file_syntax import methods_of
from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import TRAINS, SourceTree


def frozen_front(tree: SourceTree, owner: ClassRef, paths: Collection[AttributePath]) -> str:
    """Return the method that freezes what comes before the modules at some paths of a class; empty for none.

    It may belong to the class or to what holds it. It freezes everything and trains some of these modules again, or it
    freezes what a forward runs before them.
    """
    for holder in tree.freezing_classes:
        if holder is owner or owner in tree.containers.with_parts(holder):
            methods = methods_of(tree.class_node(holder))
            parts = _Attributes(tree, holder, owner, {path[0] for path in paths if path})
            for method in methods:
                frozen = dict(_set(method))
                if frozen.get("self") is False and True in frozen.values():
                    trains_some = any(parts.reach(name) for name, _ in _used(method))
                else:
                    fronts = [name.removeprefix("self.") for name, trained in frozen.items() if not trained]
                    runs = ((each, front) for each in methods if each.name.startswith("forward") for front in fronts)
                    trains_some = not any(map(parts.reach, fronts)) and any(
                        parts.come_first(forward, front) for forward, front in runs
                    )
                if trains_some:
                    return f"{holder.name}.{method.name}"
    return ""


@dataclass(frozen=True, slots=True)
class _Attributes:
    """The attributes of `holder`, some of which may lead to modules of `owner`: to its attributes in `firsts`."""

    tree: SourceTree
    holder: ClassRef
    owner: ClassRef
    firsts: Collection[str]

    def reach(self, name: str) -> bool:
        """Tell whether an attribute leads to the modules in question."""
        if self.holder is self.owner:
            return name in self.firsts
        containers = self.tree.containers
        return self.owner in containers.with_parts(*containers.classes_at(self.holder, [(name,), (name, ELEMENT)]))

    def learn(self, name: str) -> bool:
        """Tell whether an attribute has parameters."""
        return any(self.tree.containers.learns(self.holder, path) for path in ((name,), (name, ELEMENT)))

    def come_first(self, forward: ast.FunctionDef, front: str) -> bool:
        """Tell whether a forward runs a frozen attribute, then these modules, with nothing that trains between."""
        used = [name for name, may_not_run in _used(forward) if not may_not_run]
        start = used.index(front) if front in used else len(used)
        behind = [name for name in used[start:] if name != front and (self.reach(name) or self.learn(name))]
        return not any(map(self.learn, used[:start])) and bool(behind) and self.reach(behind[0])


def _set(node: ast.AST, names: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, bool]]:
    """Yield whose parameters a method freezes, or trains; `names` are those of loops, each with whose they are."""
    for inner in ast.iter_child_nodes(node):
        match inner:
            case ast.Assign(targets=[ast.Attribute(value=of, attr=name)], value=ast.Constant(value=bool(value))):
                if name == TRAINS:
                    yield names.get(dotted(of), dotted(of)), value
            case ast.Call(func=ast.Attribute(value=of, attr="requires_grad_"), args=[ast.Constant(value=bool(value))]):
                yield dotted(of), value
            case ast.For(target=target, iter=ast.Call(func=function)):
                over = dotted(function).removesuffix(".parameters")
                yield from _set(inner, {**names, dotted(target): names.get(over, over)})
            case ast.For(target=target, iter=ast.Attribute() as over_all):
                yield from _set(inner, {**names, dotted(target): dotted(over_all)})
            case _:
                yield from _set(inner, names)


def _used(method: ast.FunctionDef) -> Iterator[tuple[str, bool]]:
    """Yield the attributes of `self` that a method uses, in order, and whether they stand in a branch."""
    branches = (part for node in walk(method) if isinstance(node, ast.If) for part in node.body)
    optional = {id(inner) for part in branches for inner in walk(part)}
    nodes = [node for node in walk(method) if isinstance(node, ast.Attribute)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr, id(node) in optional
