"""Whether what a class hands its blocks to checkpoints them: a method, or a function, at hand or not."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

from ckpt_surgery.codemods.facts.checkpoint_helpers import handed_to
from ckpt_surgery.codemods.providers.helpers import FUNCTIONS, METHODS
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef, External, is_plain_external

_CHECKPOINT = "checkpoint"
"""What the name of a function that is not at hand says of it."""
_DEEPEST = 6
"""Functions that hand modules on to one another deeper than this are not followed."""
_STANDARD = frozenset(sys.stdlib_module_names)


class Helpers:
    """The functions and methods of a tree that are handed modules.

    `function_node` gives the syntax tree of a function by its file and name, None where it cannot be read.
    """

    def __init__(self, bases: BaseChains, function_node: Callable[[str, str], ast.FunctionDef | None]) -> None:
        self._bases = bases
        self._function_node = function_node
        self._answers: dict[tuple[str, str], Answer] = {}

    def checkpoints(self, owner: ClassRef, name: str) -> Answer:
        """Whether what a class calls by a name checkpoints what it is given; no name stands for what does."""
        if not name:
            return Answer.YES
        base, _, attribute = name.rpartition(".")
        if base != "self":
            return self._of_function(owner.path, name)
        lineage = tuple(self._bases.lineage(owner))
        if any(attribute in ancestor.cls[METHODS] for ancestor in lineage):
            return Answer.YES
        if any(method.name == attribute for ancestor in lineage for method in ancestor.cls.methods):
            return Answer.NO
        if _CHECKPOINT in attribute:
            return Answer.YES
        return Answer.NO if all(map(_is_known, self._bases.chain(owner))) else Answer.UNKNOWN

    def _of_function(self, path: str, name: str, depth: int = 0) -> Answer:
        names = self._bases.names
        place = names.function(path, name)
        if place is None:
            if _CHECKPOINT in name.rpartition(".")[2]:
                return Answer.YES
            targets = names.named(path, name)
            return Answer.NO if all(map(_is_known, targets)) else Answer.UNKNOWN
        if place not in self._answers:
            self._answers[place] = Answer.NO  # functions that call one another end here
            facts = names.facts(place[0])
            listed = facts is not None and place[1] in facts[FUNCTIONS]
            self._answers[place] = Answer.YES if listed else self._of_node(place, depth)
        return self._answers[place]

    def _of_node(self, place: tuple[str, str], depth: int) -> Answer:
        """What becomes of the modules that a function hands on in turn."""
        node = self._function_node(*place)
        if node is None or depth > _DEEPEST:
            return Answer.UNKNOWN
        answers = {self._of_function(place[0], name, depth + 1) for name in handed_to(node)}
        return next((answer for answer in (Answer.YES, Answer.UNKNOWN) if answer in answers), Answer.NO)


def _is_known(target: ClassRef | External) -> bool:
    """Whether something is a class at hand, or of a library that checkpoints nothing under another name."""
    if isinstance(target, ClassRef) or not target.module:
        return True
    return is_plain_external(target) or target.module.partition(".")[0] in _STANDARD
