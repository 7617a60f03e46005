"""Blocks that a layer's switch would not reach, or that are not in training mode where their model is."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cached_property, partial

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, AttributePath
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.providers.module_modes import MAY_EVALUATE, held_in_eval, plain_lists
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.containers import Containers

_REGISTERING = r"(?:torch\.)?(?:nn\.)?(?:ModuleList|ModuleDict|Sequential)\b"


class ModuleModes:
    """What classes do to the blocks that they hold.

    Args:
        bases: the base chains of the tree.
        containers: what its classes hold.
        source: the text of a file.
        node: the syntax tree of a class.
        function: that of a function, by its file and name.
    """

    def __init__(
        self,
        bases: BaseChains,
        containers: Containers,
        source: Callable[[str], SourceText],
        node: Callable[[ClassRef], ast.ClassDef],
        function: Callable[[str, str], ast.FunctionDef | None],
    ) -> None:
        self._bases = bases
        self._containers = containers
        self._source = source
        self._node = node
        self._function = function

    def held_in_eval_by(self, block: ClassRef) -> ClassRef | None:
        """The class that takes blocks of this class out of training mode and stays in it; None if none does."""
        return self._in_eval.get(block)

    @cached_property
    def _in_eval(self) -> dict[ClassRef, ClassRef]:
        in_eval: dict[ClassRef, ClassRef] = {}
        for holder in self._bases.names.checked_classes():
            if holder.cls[MAY_EVALUATE]:
                held = held_in_eval(self._node(holder), partial(self._function_of, holder.path))
                paths = [(*reached, *[ELEMENT] * depth) for reached in held for depth in range(3)]
                in_eval |= dict.fromkeys(self._containers.classes_at(holder, paths), holder)
        return in_eval

    def _function_of(self, path: str, name: str) -> ast.FunctionDef | None:
        place = self._bases.names.function(path, name)
        return self._function(*place) if place else None

    def unregistered_at(self, owner: ClassRef, path: AttributePath) -> str:
        """The attribute at a path that keeps blocks in a plain list, where no switch finds them; else empty."""
        last = max((at for at, step in enumerate(path) if step != ELEMENT), default=len(path))
        if last + 1 >= len(path):
            return ""
        attribute = path[last]
        assigned = re.compile(rf"\bself\.{re.escape(attribute)}\s*(?::[^=\n]+)?=\s*(?!{_REGISTERING})")
        for holder in (owner,) if last == 0 else self._containers.classes_at(owner, [path[:last]]):
            for base in self._bases.lineage(holder):
                text = self._source(base.path).of(base.cls.span)
                if f"self.{attribute} = nn.ModuleList(" in text or not assigned.search(text):
                    continue
                lists = plain_lists(self._node(base))
                blocks = self._containers.classes_at(owner, [path])
                if attribute in lists and not self._held_beside(holder, lists).intersection(blocks):
                    return f"{base.name}.{attribute}"
        return ""

    def _held_beside(self, holder: ClassRef, lists: frozenset[str]) -> set[ClassRef]:
        """What the attributes of a class hold that are no such lists."""
        names = {name for name, _, _ in self._bases.attributes(holder)} - lists
        paths = [(name, *[ELEMENT] * depth) for name in names for depth in range(3)]
        return set(self._containers.classes_at(holder, paths))
