"""What classes inherit: base chains, and what a class has from them.

Answers are three-valued where the tree may not tell: a base class outside it makes them `UNKNOWN`, not a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from ckpt_surgery.codemods.facts.file_facts import Build, ForwardSignature
from ckpt_surgery.codemods.providers.replaced_forwards import REPLACED
from ckpt_surgery.codemods.tree.classes import TORCH_PREFIXES, Answer, ClassRef, External, Target, is_plain_external
from ckpt_surgery.codemods.tree.names import TreeNames
from ckpt_surgery.model_patches.release_names import LAYER_CLASS


class BaseChains:
    """The base chains of a tree's classes."""

    def __init__(self, names: TreeNames) -> None:
        self.names = names
        self._chains: dict[ClassRef, tuple[Target, ...]] = {}
        self._layers: dict[ClassRef, Answer] = {}
        self._attributes: dict[ClassRef, dict[str, tuple[Build, ...]]] = {}

    def chain(self, ref: ClassRef) -> tuple[Target, ...]:
        """The class and all that it inherits, nearest first, externals included."""
        if ref not in self._chains:
            self._chains[ref] = (ref,)  # a class that inherits from itself ends here
            chain: list[Target] = [ref]
            for base in ref.cls.bases:
                for target in self.names.named(ref.path, base) or (External(base, ""),):
                    if target is ref:
                        continue
                    for inner in self.chain(target) if isinstance(target, ClassRef) else (target,):
                        if inner not in chain:
                            chain.append(inner)
            self._chains[ref] = tuple(chain)
        return self._chains[ref]

    def lineage(self, ref: ClassRef) -> Iterator[ClassRef]:
        """The part of the base chain that the tree holds."""
        return (target for target in self.chain(ref) if isinstance(target, ClassRef))

    def heirs(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """Every checked class that inherits from a class."""
        return tuple(self._heirs.get(ref, ()))

    @cached_property
    def _heirs(self) -> dict[ClassRef, list[ClassRef]]:
        heirs: dict[ClassRef, list[ClassRef]] = {}
        for ref in self.names.checked_classes():
            for ancestor in self.lineage(ref):
                if ancestor is not ref:
                    heirs.setdefault(ancestor, []).append(ref)
        return heirs

    def is_layer(self, ref: ClassRef) -> Answer:
        """Whether the class is a GradientCheckpointingLayer."""
        if ref not in self._layers:
            externals = [target for target in self.chain(ref) if isinstance(target, External)]
            if any(target.name == LAYER_CLASS for target in self.chain(ref)):
                self._layers[ref] = Answer.YES
            elif all(map(is_plain_external, externals)):
                self._layers[ref] = Answer.NO
            else:
                self._layers[ref] = Answer.UNKNOWN
        return self._layers[ref]

    def is_module(self, ref: ClassRef) -> bool:
        """Whether the class is a torch module, as far as the tree shows."""
        externals = [target.name for target in self.chain(ref) if isinstance(target, External)]
        return any(
            name == LAYER_CLASS or name.endswith(("Module", "PreTrainedModel")) or name.startswith(TORCH_PREFIXES)
            for name in externals
        )

    def is_pretrained(self, ref: ClassRef) -> bool:
        """Whether the class is a model of transformers, which `gradient_checkpointing_enable` switches."""
        bases = [(target.name, target.module) for target in self.chain(ref) if isinstance(target, External)]
        return any(
            name.rpartition(".")[2] == "PreTrainedModel" and ("transformers" in name + module or module[:2] == "..")
            for name, module in bases
        )

    def flag(self, ref: ClassRef, name: str) -> str | None:
        """A class attribute's text, inherited or own."""
        for ancestor in self.lineage(ref):
            for key, value in ancestor.cls.flags:
                if key == name:
                    return value
        return None

    @cached_property
    def replaced(self) -> frozenset[ClassRef]:
        """The classes that get another forward somewhere at module level: what their own says is not what runs."""
        targets = (
            target
            for path in self.names.checked
            for name in self.names.files[path][REPLACED]
            for target in self.names.named(path, name)
        )
        return frozenset(target for target in targets if isinstance(target, ClassRef))

    def is_replaced(self, ref: ClassRef) -> bool:
        """Whether the forward that runs is one that was assigned to the class, or to the one it has it from."""
        for ancestor in self.lineage(ref):
            if ancestor in self.replaced or ancestor.cls.forward:
                return ancestor in self.replaced
        return False

    def forward(self, ref: ClassRef) -> tuple[ClassRef, ForwardSignature] | None:
        """The forward that runs, and the class that defines it; None where the files do not show it."""
        if self.is_replaced(ref):
            return None
        for ancestor in self.lineage(ref):
            if ancestor.cls.forward:
                return ancestor, ancestor.cls.forward
        return None

    def attribute(self, ref: ClassRef, name: str) -> tuple[tuple[ClassRef, Build], ...]:
        """What `self.name` is built from, with the class that says so: the nearest one that does."""
        for ancestor in self.lineage(ref):
            if ancestor not in self._attributes:
                by_name: dict[str, tuple[Build, ...]] = {}
                for key, built in ancestor.cls.attributes:
                    by_name[key] = (*by_name.get(key, ()), built)
                self._attributes[ancestor] = by_name
            builds = self._attributes[ancestor].get(name)
            if builds:
                return tuple((ancestor, built) for built in builds)
        return ()

    def attributes(self, ref: ClassRef) -> Iterator[tuple[str, ClassRef, Build]]:
        """Every attribute of a class and its ancestors: its name, the class that sets it, what it is built from."""
        seen: set[str] = set()
        for ancestor in self.lineage(ref):
            names = {name for name, _ in ancestor.cls.attributes}
            for name, built in ancestor.cls.attributes:
                if name not in seen:
                    yield name, ancestor, built
            seen |= names
