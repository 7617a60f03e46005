"""Find blocks that are in eval mode while their model trains, or in plain lists, where no switch reaches them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, AttributePath
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.providers.module_modes import MAY_EVALUATE, held_in_eval, plain_lists
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.containers import Containers

_REGISTERING_CONTAINER = r"(?:torch\.)?(?:nn\.)?(?:ModuleList|ModuleDict|Sequential)\b"


@dataclass(eq=False)
class ModuleModes:
    """The modes that classes set on the blocks they hold.

    Args:
        bases: the base chains of the tree.
        containers: what its classes hold.
        source: returns the text of a file.
        class_node: returns the syntax tree of a class.
        function_node: returns the syntax tree of the function that a name means in a file.
    """

    bases: BaseChains
    containers: Containers
    source: Callable[[str], SourceText]
    class_node: Callable[[ClassRef], ast.ClassDef]
    function_node: Callable[[str, str], ast.FunctionDef | None]

    @cached_property
    def in_eval(self) -> dict[ClassRef, ClassRef]:
        """For each block that is held in eval mode, the class that puts it there."""
        in_eval: dict[ClassRef, ClassRef] = {}
        for holder in self.bases.names.checked_classes():
            if holder.cls[MAY_EVALUATE]:
                held = held_in_eval(self.class_node(holder), partial(self.function_node, holder.path))
                in_eval |= dict.fromkeys(self._held(holder, held), holder)
        return in_eval

    def _held(self, holder: ClassRef, paths: Collection[AttributePath]) -> tuple[ClassRef, ...]:
        """Return what a class holds at some paths, by itself or in stacks."""
        paths = [(*path, *[ELEMENT] * depth) for path in paths for depth in range(3)]
        return self.containers.classes_at(holder, paths)

    def unregistered_at(self, owner: ClassRef, path: AttributePath) -> str:
        """Return the attribute at a path that holds blocks in a plain list, where no switch finds them; else empty."""
        last = max((index for index, step in enumerate(path) if step != ELEMENT), default=len(path))
        if last + 1 >= len(path):
            return ""
        attribute = path[last]
        assigned = re.compile(rf"\bself\.{re.escape(attribute)}\s*(?::[^=\n]+)?=\s*(?!{_REGISTERING_CONTAINER})")
        for holder in self.containers.classes_at(owner, [path[:last]]) if last else (owner,):
            for base in self.bases.lineage(holder):
                text = self.source(base.path).of(base.cls.span)
                if f"self.{attribute} = nn.ModuleList(" in text or not assigned.search(text):
                    continue
                lists = plain_lists(self.class_node(base))
                beside = [(name,) for name, _, _ in self.bases.attributes(holder) if name not in lists]
                blocks = self.containers.classes_at(owner, [path])
                if attribute in lists and not set(blocks).intersection(self._held(holder, beside)):
                    return f"{base.name}.{attribute}"
        return ""
