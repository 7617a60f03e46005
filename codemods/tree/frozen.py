"""Find classes that train a part of what they hold behind frozen modules: its input needs no gradient."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
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
            reached = partial(_reaches, tree, holder, owner, {path[0] for path in paths if path})
            learns = partial(_learns, tree, holder)
            for method in methods:
                frozen = dict(_set(method))
                if frozen.get("self") is False and True in frozen.values():
                    trains_some = any(reached(name) for name, _ in _used(method))
                else:
                    fronts = [name.removeprefix("self.") for name, trained in frozen.items() if not trained]
                    runs = ((each, front) for each in methods if each.name.startswith("forward") for front in fronts)
                    trains_some = not any(map(reached, fronts)) and any(
                        _comes_first(forward, front, reached, learns) for forward, front in runs
                    )
                if trains_some:
                    return f"{holder.name}.{method.name}"
    return ""


def _reaches(tree: SourceTree, holder: ClassRef, owner: ClassRef, firsts: Collection[str], name: str) -> bool:
    """Tell whether an attribute of a class leads to the modules in question."""
    if holder is owner:
        return name in firsts
    return owner in tree.containers.with_parts(*tree.containers.classes_at(holder, _at(name)))


def _learns(tree: SourceTree, holder: ClassRef, name: str) -> bool:
    return any(tree.containers.learns(holder, path) for path in _at(name))


def _at(name: str) -> tuple[AttributePath, ...]:
    return ((name,), (name, ELEMENT))


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


def _comes_first(
    forward: ast.FunctionDef, front: str, reached: Callable[[str], bool], learns: Callable[[str], bool]
) -> bool:
    """Tell whether a forward runs a frozen attribute, then these modules, with nothing that trains between."""
    used = [name for name, may_not_run in _used(forward) if not may_not_run]
    start = used.index(front) if front in used else len(used)
    behind = [name for name in used[start:] if name != front and (reached(name) or learns(name))]
    return not any(map(learns, used[:start])) and bool(behind) and reached(behind[0])


def _used(method: ast.FunctionDef) -> Iterator[tuple[str, bool]]:
    """Yield the attributes of `self` that a method uses, in order, and whether they stand in a branch."""
    branches = (part for node in walk(method) if isinstance(node, ast.If) for part in node.body)
    optional = {id(inner) for part in branches for inner in walk(part)}
    nodes = [node for node in walk(method) if isinstance(node, ast.Attribute)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr, id(node) in optional
