"""Tell which classes are blocks: layers, and plain classes that should be layers.

A plain block is the outermost stack element of a model that claims checkpointing, mixes positions
(attention, recurrence, state space) somewhere inside, and holds no checkpointing layer of its own.
Anything else in a stack (projections, heads, experts, norms, convolutions) is an element, but not a block.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ckpt_surgery.codemods.facts.checkpoint_helpers import handed_to
from ckpt_surgery.codemods.facts.file_facts import DYNAMIC, ELEMENT, HandedOn, ModuleCall
from ckpt_surgery.codemods.providers.foreign_stacks import FOREIGN_STACKS
from ckpt_surgery.codemods.providers.forwards import DECORATORS
from ckpt_surgery.codemods.providers.helpers import FUNCTIONS, METHODS
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.caching import cached_method, cached_with_cycles
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef, External, Target, is_finished_model
from ckpt_surgery.codemods.tree.containers import Containers
from ckpt_surgery.codemods.tree.switches import Switches
from ckpt_surgery.model_patches import family_facts
from ckpt_surgery.model_patches.release_names import LAYER_CLASS
from ckpt_surgery.model_patches.vocabulary import MIXERS, NO_BLOCKS

_STANDARD = frozenset(sys.stdlib_module_names)
_WRAPPERS = frozenset({"checkpoint_wrapper", "apply_activation_checkpointing"})
"""Functions of torch and fairscale that wrap modules in ones that checkpoint them."""


@dataclass(frozen=True, slots=True)
class StackElement:
    """A class found in a stack, the stack's owner and attribute, and whether the class is a block."""

    holder: ClassRef
    attribute: str
    element: ClassRef
    is_block: bool

    @property
    def stack(self) -> str:
        """The stack as messages name it."""
        return f"{self.holder.name}.{self.attribute}"


@dataclass(eq=False)
class Blocks:
    """The blocks of a tree.

    `function_node` returns the syntax tree of a function, given its file and name; None if it cannot be read.
    `keeps_branches` tells whether a file keeps the inline branches that work.
    """

    bases: BaseChains
    containers: Containers
    switches: Switches
    function_node: Callable[[str, str], ast.FunctionDef | None]
    keeps_branches: Callable[[str], bool]

    @cached_property
    def in_stacks(self) -> frozenset[ClassRef]:
        """The plain blocks of stacks, except those that are checkpointed by hand. Some of them cannot be layers."""
        blocks = {element.element for element in self.elements(self.containers.supported) if element.is_block}
        plain = {ref for ref in blocks if self.bases.is_layer(ref) is Answer.NO}
        return frozenset(plain - self.checkpointed_by_helper - self.checkpointed_inline)

    @cached_property
    def plain(self) -> frozenset[ClassRef]:
        """Plain classes that should be layers: blocks in stacks, and what inline branches checkpoint.

        Those that cannot be layers, or that nothing would switch on, are left out.
        """
        in_stacks = (ref for ref in self.in_stacks if not self.switches.of_layer(ref))
        owners = (owner for owner in self.with_inlines if not self.switches.of_branches(owner))
        return frozenset(in_stacks).union(*map(self._run_inline, owners))

    @cached_property
    def staying(self) -> frozenset[ClassRef]:
        """The plain classes that stay plain because the inline branches that checkpoint them stay."""
        owners = (owner for owner in self.with_inlines if not self.keeps_branches(owner.path))
        plain = self.plain.difference(self.in_stacks, *map(self._run_inline, owners))
        return frozenset(ref for ref in plain if self.bases.is_layer(ref) is not Answer.YES)

    @cached_property
    def callers(self) -> dict[ClassRef, list[tuple[ClassRef, ModuleCall]]]:
        """For each class of the tree, the calls that may run it, each with the checked class that makes it."""
        callers: dict[ClassRef, list[tuple[ClassRef, ModuleCall]]] = {}
        for owner in self.bases.names.checked_classes():
            for call in owner.cls.calls:
                for target in self.containers.classes_at(owner, call.paths):
                    callers.setdefault(target, []).append((owner, call))
        return callers

    @cached_property
    def with_inlines(self) -> tuple[ClassRef, ...]:
        """The checked classes with checkpoint calls of their own."""
        classes = self.bases.names.checked_classes()
        return tuple(ref for ref in classes if ref.cls.inlines and ref.name != LAYER_CLASS)

    @cached_property
    def checkpointed_inline(self) -> frozenset[ClassRef]:
        """The classes of the tree that a checkpoint call runs, in an inline branch or not, or runs a method of."""
        refs: set[ClassRef] = set()
        for owner in self.with_inlines:
            refs.update(self._run_inline(owner))
            for path in (path for _, checkpoint in owner.cls.checkpoint_calls for path in checkpoint.paths):
                holders = self.containers.classes_at(owner, [path[:-1]])  # as in `checkpoint(layer.step, x)`
                refs.update(ref for ref in holders if self.bases.has_method(ref, path[-1]))
        return frozenset(refs)

    def _run_inline(self, owner: ClassRef) -> tuple[ClassRef, ...]:
        calls = owner.cls.checkpoint_calls
        return self.containers.classes_at(owner, [path for call in calls for path in owner.cls.paths_behind(*call)])

    @cached_property
    def checkpointed_by_helper(self) -> frozenset[ClassRef]:
        """The classes of the tree that a method passes to a function, method or attribute which checkpoints them.

        Those that checkpoint a function or method of their own are included.
        """
        classes: set[ClassRef] = set()
        for owner, handed in self._handed_on(Answer.YES):
            classes.update(self.containers.classes_at(owner, handed.paths))
        for owner in self.bases.names.checked_classes():
            if self.imports_wrapper(owner):
                classes.update(self.containers.parts(owner))
            if any(self._is_helper(owner, name) is Answer.YES for name in owner.cls[DECORATORS]):
                classes.add(owner)
        for owner in self.with_inlines:
            heirs, calls = self.bases.heirs(owner), owner.cls.checkpoint_calls
            for inline, call in calls:
                holder, _, name = call.callee.rpartition(".")
                is_own = holder == "self" and (name == "__call__" or self.bases.has_method(owner, name))
                if call.wrapping == "closure" or holder == "super()" or is_own:
                    inheriting = (
                        heir for heir in heirs if all(each.name != inline.method for each in heir.cls.methods)
                    )
                    classes.update((owner, *inheriting))
            if not all(self.containers.classes_at(owner, owner.cls.paths_behind(*call)) for call in calls):
                # what is checkpointed is not known: it may be whatever is in a stack
                for part in self.containers.with_parts(owner, *heirs):
                    stacks = [name for name, _, built in self.bases.attributes(part) if built.holds_several()]
                    paths = [(name, *[ELEMENT] * depth) for name in stacks for depth in (1, 2)]
                    classes.update(self.containers.classes_at(part, paths))
        return frozenset(classes)

    @cached_property
    def perhaps_by_helper(self) -> dict[ClassRef, tuple[ClassRef, str]]:
        """The classes that a method passes, with arguments to run them on, to a function that is not at hand.

        Each is mapped to the class of the method and the name of the function.
        """
        helpers: dict[ClassRef, tuple[ClassRef, str]] = {}
        for owner, handed in self._handed_on(Answer.UNKNOWN):
            for ref in self.containers.classes_at(owner, handed.paths) if handed.with_values else ():
                helpers.setdefault(ref, (owner, handed.function))
        return helpers

    def reached_by(self, element: StackElement) -> str:
        """Return the function or class elsewhere that checkpoints and reads this stack's attribute; empty if none."""
        holder = element.holder
        own = {(ref.path, ref.name) for ref in (*self.bases.lineage(holder), *self.bases.heirs(holder))}
        readers = self._foreign_readers.get(element.attribute, [])
        return next((scope for path, scope in readers if (path, scope) not in own), "")

    @cached_property
    def _foreign_readers(self) -> dict[str, list[tuple[str, str]]]:
        """For each attribute, the files and names of what checkpoints and reads that attribute of other objects."""
        readers: dict[str, list[tuple[str, str]]] = {}
        for path in self.bases.names.checked:
            for scope, attributes in self.bases.names.read(path)[FOREIGN_STACKS]:
                for attribute in attributes:
                    readers.setdefault(attribute, []).append((path, scope))
        return readers

    def _handed_on(self, answer: Answer) -> Iterator[tuple[ClassRef, HandedOn]]:
        """Yield the modules that methods pass to functions for which `_is_helper` gives this answer."""
        for owner in self.bases.names.checked_classes():
            for handed in owner.cls.handed_on:
                if self._is_helper(owner, handed.function) is answer:
                    yield owner, handed

    def _is_helper(self, owner: ClassRef, name: str) -> Answer:
        """Tell whether what a class calls by a name checkpoints its arguments; "" stands for what does."""
        base, _, attribute = name.rpartition(".")
        if base != "self":
            return self._is_helper_function(owner.path, name) if name else Answer.YES
        if any(attribute in base.cls[METHODS] for base in self.bases.lineage(owner)):
            return Answer.YES
        return Answer.NO if self.bases.has_method(owner, attribute) else _by_name(attribute, self.bases.chain(owner))

    @cached_with_cycles(Answer.NO)
    def _is_helper_function(self, path: str, name: str) -> Answer:
        names = self.bases.names
        place = names.function(path, name)
        if place is None:
            return _by_name(name.rpartition(".")[2], names.named(path, name))
        if place[1] in names.read(place[0])[FUNCTIONS]:
            return Answer.YES
        node = self.function_node(*place)
        if node is None:
            return Answer.UNKNOWN
        answers = {self._is_helper_function(place[0], other) for other in handed_to(node)}
        return next((answer for answer in (Answer.YES, Answer.UNKNOWN) if answer in answers), Answer.NO)

    def imports_wrapper(self, owner: ClassRef) -> bool:
        """Tell whether the file of a class imports a function that wraps blocks in checkpointing modules."""
        return any(imported.original in _WRAPPERS for imported in self.bases.names.read(owner.path).imports)

    @cached_method
    def elements(self, parts: frozenset[ClassRef]) -> tuple[StackElement, ...]:
        """Return the elements of the outermost stacks in these parts of models, except layers."""
        elements = [element for holder in parts for element in self._of_holder(holder)]
        blocks = {element.element for element in elements if element.is_block}
        layers = {ref for ref in parts if self.bases.is_layer(ref) is Answer.YES}
        inner = {*self.containers.with_parts(*blocks, *layers, *self.checkpointed_inline)}
        return tuple(element for element in elements if element.holder not in inner)

    def _of_holder(self, holder: ClassRef) -> Iterator[StackElement]:
        attributes = self.bases.attributes(holder)
        for name in dict.fromkeys(name for name, _, built in attributes if name == DYNAMIC or built.holds_several()):
            depths = (0,) if name == DYNAMIC else (1, 2)
            for target in self.containers.classes_at(holder, [(name, *[ELEMENT] * depth) for depth in depths]):
                answer, is_module = self.bases.is_layer(target), self.bases.is_module(target)
                if answer is Answer.UNKNOWN or (answer is Answer.NO and is_module):
                    yield StackElement(holder, name, target, not is_module or self._is_block(holder, name, target))

    def _is_block(self, holder: ClassRef, attribute: str, ref: ClassRef) -> bool:
        facts = family_facts(holder.path)
        if attribute in facts.not_stacks or ref.name in facts.not_blocks:
            return False
        if ref.name in facts.blocks:
            return True
        return not NO_BLOCKS.search(ref.name) and self.mixes(ref) and not self.holds_layer(ref)

    def foreign(self, holder: ClassRef) -> Iterator[tuple[str, External]]:
        """Yield stacks of classes from other packages: attribute and class."""
        for name, _, built in self.bases.attributes(holder):
            for target in self.containers.reached(holder, (name, ELEMENT)) if built.holds_several() else ():
                if isinstance(target, External) and target.module and not target.is_plain:
                    yield name, target

    def checkpoints(self, ref: ClassRef) -> bool:
        """Tell whether a class is a layer, or a plain block that should be one."""
        return self.bases.is_layer(ref) is Answer.YES or ref in self.plain

    def is_block(self, ref: ClassRef) -> bool:
        """Tell whether a class is checkpointed by what holds it, or should be."""
        return self.checkpoints(ref) or ref in self.in_stacks

    def checkpointed_by_hand(self, ref: ClassRef) -> bool:
        """Tell whether a checkpoint call runs a class, here or in a helper."""
        return ref in self.checkpointed_inline or ref in self.checkpointed_by_helper

    @cached_method
    def mixes(self, ref: ClassRef) -> bool:
        """Tell whether a class holds attention, recurrence or a state space model, at any depth."""
        parts = (part for holder in self.containers.with_parts(ref) for part in self.containers.all_parts(holder))
        return any(MIXERS.search(part.name.rpartition(".")[2]) for part in parts)

    @cached_method
    def holds_layer(self, ref: ClassRef) -> bool:
        """Tell whether a class holds something that checkpoints or is checkpointed, at any depth."""
        inside = self.containers.with_parts(*self.containers.parts(ref))
        if any(self.bases.is_layer(part) is Answer.YES or self.checkpointed_by_hand(part) for part in inside):
            return True
        return any(is_finished_model(part) for holder in (ref, *inside) for part in self.containers.all_parts(holder))


def _by_name(name: str, targets: Iterable[Target]) -> Answer:
    """Judge a function that is not at hand by its name, and by the libraries it may come from."""
    if "checkpoint" in name:
        return Answer.YES
    for target in targets:
        if isinstance(target, External) and target.module and not target.is_plain:
            library = target.module.partition(".")[0]
            if library not in _STANDARD:  # it may checkpoint under any name
                return Answer.UNKNOWN
    return Answer.NO
