"""Find methods that freeze all that comes before trained modules, whose input then needs no gradient."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, AttributePath
from ckpt_surgery.codemods.facts.file_syntax import methods_of
from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import REQUIRES_GRAD, SourceTree


def frozen_front(tree: SourceTree, owner: ClassRef, paths: Collection[AttributePath]) -> str:
    """Return the method that freezes what comes before the modules at some paths of a class; empty if there is none.

    It belongs to the class or to one that holds it. It freezes everything and then trains some of these modules again,
    or it freezes what a forward runs before them.
    """
    for holder in tree.freezing_classes:
        if holder is owner or owner in tree.containers.with_parts(holder):
            methods = methods_of(tree.class_node(holder))
            attributes = _Attributes(tree, holder, owner, {path[0] for path in paths if path})
            for method in methods:
                trained = dict(_trained(method))
                if trained.get("self") is False and True in trained.values():
                    is_front = any(attributes.lead_to_target(name) for name, _ in _used_attributes(method))
                else:
                    frozen = [name.removeprefix("self.") for name, is_trained in trained.items() if not is_trained]
                    forwards = [each for each in methods if each.name.startswith("forward")]
                    is_front = not any(map(attributes.lead_to_target, frozen)) and any(
                        attributes.are_run_behind(name, forward) for forward in forwards for name in frozen
                    )
                if is_front:
                    return f"{holder.name}.{method.name}"
    return ""


@dataclass(frozen=True, slots=True)
class _Attributes:
    """The attributes of `holder`. Targets are those that lead to the attributes `names` of `owner`."""

    tree: SourceTree
    holder: ClassRef
    owner: ClassRef
    names: Collection[str]

    def lead_to_target(self, name: str) -> bool:
        """Tell whether an attribute is, or holds, a target."""
        if self.holder is self.owner:
            return name in self.names
        containers = self.tree.containers
        return self.owner in containers.with_parts(*containers.classes_at(self.holder, [(name,), (name, ELEMENT)]))

    def have_parameters(self, name: str) -> bool:
        """Tell whether an attribute has parameters."""
        return any(self.tree.containers.has_parameters(self.holder, path) for path in ((name,), (name, ELEMENT)))

    def are_run_behind(self, frozen: str, forward: ast.FunctionDef) -> bool:
        """Tell whether a forward runs a frozen attribute first and then a target, with nothing trained in between."""
        used = [name for name, is_conditional in _used_attributes(forward) if not is_conditional]
        start = used.index(frozen) if frozen in used else len(used)
        rest = (name for name in used[start:] if name != frozen)
        behind = [name for name in rest if self.lead_to_target(name) or self.have_parameters(name)]
        return not any(map(self.have_parameters, used[:start])) and bool(behind) and self.lead_to_target(behind[0])


def _trained(node: ast.AST, loop_names: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, bool]]:
    """Yield the modules (`self.encoder`) whose parameters a method trains (True) or freezes (False).

    `loop_names` maps the variables of loops over parameters to the module that these belong to.
    """
    for inner in ast.iter_child_nodes(node):
        match inner:
            case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=ast.Constant(value=bool(value))):
                if name == REQUIRES_GRAD:
                    yield loop_names.get(dotted(owner), dotted(owner)), value
            case ast.Call(func=ast.Attribute(value=owner, attr="requires_grad_"), args=[ast.Constant(bool(value))]):
                yield dotted(owner), value
            case ast.For(target=target, iter=ast.Call(func=function)):
                over = dotted(function).removesuffix(".parameters")
                yield from _trained(inner, {**loop_names, dotted(target): loop_names.get(over, over)})
            case ast.For(target=target, iter=ast.Attribute() as stack):
                yield from _trained(inner, {**loop_names, dotted(target): dotted(stack)})
            case _:
                yield from _trained(inner, loop_names)


def _used_attributes(method: ast.FunctionDef) -> Iterator[tuple[str, bool]]:
    """Yield the attributes of `self` that a method uses, in order, and whether each is inside an `if`."""
    branches = (part for node in walk(method) if isinstance(node, ast.If) for part in node.body)
    conditional = {id(inner) for part in branches for inner in walk(part)}
    nodes = [node for node in walk(method) if isinstance(node, ast.Attribute)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr, id(node) in conditional
