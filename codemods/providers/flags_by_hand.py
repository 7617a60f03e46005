"""Find where a file sets `gradient_checkpointing` on what is surely a model of transformers.

For example `self.tower = SiglipVisionModel(config)` and `self.tower.gradient_checkpointing = True` in one class, or
the same with names in one function or at module level. A name that is also bound to anything else is not followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.syntax import IN_PLACE, Span, dotted, imported_names, last_name, span_of, walk
from ckpt_surgery.model_patches.release_names import FLAG, INNER_SWITCH, SWITCH_ON

_SETS_FLAG = re.compile(rf"\.{FLAG}\s*=[^=]")
_MODEL = re.compile(r"(?!TF[A-Z]|Flax)[A-Z]\w*?(?:Model|For[A-Z]\w*)$")
_MAKERS = (".from_pretrained", ".from_config", "._from_config")


class FlagByHand(NamedTuple):
    """A flag set by hand: the object it is set on, the statement, and the class or function around it."""

    target: str
    span: Span
    scope: str


def _flags(file: FileSyntax) -> Iterator[FlagByHand]:
    starts = (match.start() for match in _SETS_FLAG.finditer(file.source))
    if not file.mentions("transformers") or all(file.source.endswith("self", 0, start) for start in starts):
        return
    nodes = walk(file.tree)
    flags = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr == FLAG)
    read = {last_name(node.value) for node in flags if isinstance(node.ctx, ast.Load)}
    imported = {
        name: original
        for node in nodes
        for name, module, original in imported_names(node)
        if module == "transformers" or (original and module.startswith("transformers."))
    }
    module = [statement for statement, _ in file.statements if not isinstance(statement, ast.ClassDef)]
    # in a scope a name means the same throughout: the scope's name, the prefix of its names, and its nodes
    scopes: list[tuple[str, str, list[ast.AST]]]
    scopes = [("", "", [node for node in module if not isinstance(node, ast.FunctionDef)])]
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            scopes.append((node.name, "self." if isinstance(node, ast.ClassDef) else "", walk(node)))
    set_by_hand: dict[Span, FlagByHand] = {}
    for scope, prefix, inside in scopes:
        bound = _Bound(inside, imported)
        for node in inside:
            match node:
                case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=value) if name == FLAG:
                    target = dotted(owner)
                    own = target.startswith(prefix) if prefix else "." not in target
                    switched = any(f"{target}.{switch}(" in file.source for switch in (*SWITCH_ON, INNER_SWITCH))
                    off = isinstance(value, ast.Constant) and not value.value
                    is_read = target.rpartition(".")[2] in read
                    if own and not (off or switched or is_read) and bound.is_model(target):
                        set_by_hand[span_of(node)] = FlagByHand(target, span_of(node), scope)
    yield from set_by_hand.values()


class _Bound:
    """The values that the names of a scope are bound to."""

    def __init__(self, nodes: Iterable[ast.AST], imported: Mapping[str, str]) -> None:
        self._imported = imported
        self._values: dict[str, list[ast.expr]] = {}
        for node in nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    self._bind(targets, value)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._bind([target], value)
                case ast.For(target=target):
                    self._bind([target], target)
                case ast.withitem(optional_vars=ast.expr() as target):
                    self._bind([target], target)
                case ast.arg(arg=name):
                    self._values.setdefault(name, []).append(ast.Name(name))

    def _bind(self, targets: Iterable[ast.expr], value: ast.expr) -> None:
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if not (isinstance(value, ast.Constant) and value.value is None):
                    self._values.setdefault(dotted(part), []).append(value)

    def is_model(self, name: str, followed: frozenset[str] = frozenset()) -> bool:
        """Tell whether everything that a name is bound to, except None, is a model of transformers."""
        values = self._values.get(name, []) if name not in followed else []
        return bool(values) and all(self._makes_model(value, followed | {name}) for value in values)

    def _makes_model(self, value: ast.expr, followed: frozenset[str]) -> bool:
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Call() as inner, attr=name)) if name in IN_PLACE:
                return self._makes_model(inner, followed)
            case ast.Call(func=function, keywords=keywords):
                name = dotted(function)
                for maker in _MAKERS:
                    name = name.removesuffix(maker)
                head, _, rest = name.partition(".")
                remote = "Auto" in name and any(word.arg in (None, "trust_remote_code") for word in keywords)
                return head in self._imported and not remote and bool(_MODEL.match(self._imported[head] + rest))
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name)) if name != "self":
                return self.is_model(name, followed)
        return False


FLAGS_BY_HAND = FileFact[tuple[FlagByHand, ...]](
    "flags_by_hand", lambda file: tuple(_flags(file)), nothing=(), signs=(f".{FLAG}",)
)
