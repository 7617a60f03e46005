"""Whether what a class hands its blocks to checkpoints them: a method, or a function, at hand or not."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.checkpoint_helpers import handed_to
from ckpt_surgery.codemods.providers.helpers import FUNCTIONS, METHODS
from ckpt_surgery.codemods.tree.answers import kept_in_circles
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef, Target, is_plain_external

_STANDARD = frozenset(sys.stdlib_module_names)


@dataclass(eq=False)
class Helpers:
    """The functions and methods of a tree that are handed modules.

    `function_node` gives the syntax tree of a function by its file and name, None where it cannot be read.
    """

    bases: BaseChains
    function_node: Callable[[str, str], ast.FunctionDef | None]

    def checkpoints(self, owner: ClassRef, name: str) -> Answer:
        """Whether what a class calls by a name checkpoints what it is given; no name stands for what does."""
        base, _, attribute = name.rpartition(".")
        if base != "self":
            return self._of_function(owner.path, name) if name else Answer.YES
        lineage = self.bases.lineage(owner)
        if any(attribute in ancestor.cls[METHODS] for ancestor in lineage):
            return Answer.YES
        if any(method.name == attribute for ancestor in lineage for method in ancestor.cls.methods):
            return Answer.NO
        return _by_name(attribute, self.bases.chain(owner))

    @kept_in_circles(Answer.NO)
    def _of_function(self, path: str, name: str) -> Answer:
        names = self.bases.names
        place = names.function(path, name)
        if place is None:
            return _by_name(name.rpartition(".")[2], names.named(path, name))
        if place[1] in names.read(place[0])[FUNCTIONS]:
            return Answer.YES
        node = self.function_node(*place)
        if node is None:
            return Answer.UNKNOWN
        answers = {self._of_function(place[0], other) for other in handed_to(node)}
        return next((answer for answer in (Answer.YES, Answer.UNKNOWN) if answer in answers), Answer.NO)


def _by_name(name: str, targets: Iterable[Target]) -> Answer:
    """What the name of a function says that is not at hand, and the classes that it may come from."""
    if "checkpoint" in name:
        return Answer.YES
    return Answer.NO if all(map(_is_known, targets)) else Answer.UNKNOWN


def _is_known(target: Target) -> bool:
    """Whether something is a class at hand, or of a library that checkpoints nothing under another name."""
    if isinstance(target, ClassRef) or not target.module:
        return True
    return is_plain_external(target) or target.module.partition(".")[0] in _STANDARD
