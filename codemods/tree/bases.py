"""Resolve what classes inherit: base chains, and what a class has from them.

Some answers are three-valued: with a base class outside the tree they are `UNKNOWN`, not a guess.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ckpt_surgery.codemods.facts.file_facts import Build, ForwardSignature
from ckpt_surgery.codemods.providers.forwards import REPLACED
from ckpt_surgery.codemods.tree.caching import cached_method, cached_with_cycles
from ckpt_surgery.codemods.tree.classes import TORCH_PREFIXES, Answer, ClassRef, External, Target
from ckpt_surgery.codemods.tree.names import TreeNames
from ckpt_surgery.model_patches.release_names import CLAIM, LAYER_CLASS


@dataclass(eq=False)
class BaseChains:
    """The base chains of a tree's classes."""

    names: TreeNames

    @cached_with_cycles(())
    def chain(self, ref: ClassRef) -> tuple[Target, ...]:
        """Return the class and all that it inherits from, nearest first, classes outside the tree included."""
        chain: dict[Target, None] = {ref: None}
        for base in ref.cls.bases:
            for target in self.names.named(ref.path, base) or (External(base, ""),):
                chain.update(dict.fromkeys(self.chain(target) if isinstance(target, ClassRef) else (target,)))
        return tuple(chain)

    @cached_method
    def lineage(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """Return the part of the base chain that the tree holds."""
        return tuple(target for target in self.chain(ref) if isinstance(target, ClassRef))

    def externals(self, target: Target) -> list[External]:
        """Return the part of the base chain that the tree does not hold."""
        chain = self.chain(target) if isinstance(target, ClassRef) else (target,)
        return [base for base in chain if isinstance(base, External)]

    def heirs(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """Return every checked class that inherits from a class."""
        return tuple(self._heirs.get(ref, ()))

    @cached_property
    def _heirs(self) -> dict[ClassRef, list[ClassRef]]:
        heirs: dict[ClassRef, list[ClassRef]] = defaultdict(list)
        for ref in self.names.checked_classes():
            for ancestor in self.lineage(ref)[1:]:
                heirs[ancestor].append(ref)
        return heirs

    @cached_method
    def is_layer(self, ref: ClassRef) -> Answer:
        """Tell whether the class is a GradientCheckpointingLayer."""
        if any(target.name == LAYER_CLASS for target in self.chain(ref)):
            return Answer.YES
        return Answer.NO if all(target.is_plain for target in self.externals(ref)) else Answer.UNKNOWN

    def is_module(self, ref: ClassRef) -> bool:
        """Tell whether the class is a torch module, as far as the tree shows."""
        return any(
            name == LAYER_CLASS or name.endswith(("Module", "PreTrainedModel")) or name.startswith(TORCH_PREFIXES)
            for name, _ in self.externals(ref)
        )

    def is_pretrained(self, ref: ClassRef) -> bool:
        """Tell whether the class is a model of transformers, which `gradient_checkpointing_enable` switches."""
        return any(
            name.rpartition(".")[2] == "PreTrainedModel" and ("transformers" in name + module or module[:2] == "..")
            for name, module in self.externals(ref)
        )

    def serves_pretrained(self, ref: ClassRef) -> bool:
        """Tell whether a class is a model of transformers, or a mixin of one."""
        return any(map(self.is_pretrained, (ref, *self.heirs(ref))))

    def claims(self, ref: ClassRef) -> bool:
        """Tell whether a model tells transformers `supports_gradient_checkpointing = True`, as far as the tree shows.

        In a plain module the attribute means whatever its own package makes of it.
        """
        if self.flag(ref, CLAIM) != "True":
            return False
        return self.is_pretrained(ref) or not all(target.is_plain for target in self.externals(ref))

    @cached_method
    def flag(self, ref: ClassRef, name: str) -> str | None:
        """Return the source text of a class attribute, its own or inherited; None if there is none."""
        flags = (flag for ancestor in self.lineage(ref) for flag in ancestor.cls.flags)
        return next((value for key, value in flags if key == name), None)

    def has_method(self, ref: ClassRef, name: str) -> bool:
        """Tell whether the class or one that it inherits from defines a method."""
        return any(method.name == name for base in self.lineage(ref) for method in base.cls.methods)

    @cached_property
    def replaced(self) -> frozenset[ClassRef]:
        """The classes to which a module assigns another forward: their own is not what runs."""
        return frozenset(
            target
            for path in self.names.checked
            for name in self.names.files[path][REPLACED]
            for target in self.names.named(path, name)
            if isinstance(target, ClassRef)
        )

    @cached_method
    def with_forward(self, ref: ClassRef) -> ClassRef | None:
        """Return the nearest class of the lineage, itself first, that has a forward or is assigned one."""
        return next((base for base in self.lineage(ref) if base.cls.forward or base in self.replaced), None)

    def is_replaced(self, ref: ClassRef) -> bool:
        """Tell whether the forward that runs was assigned to the class, or to the one it inherits it from."""
        return self.with_forward(ref) in self.replaced

    def forward(self, ref: ClassRef) -> tuple[ClassRef, ForwardSignature] | None:
        """Return the class that defines the forward that runs, and that forward; None if the files do not show it."""
        owner = self.with_forward(ref)
        return (owner, owner.cls.forward) if owner and owner.cls.forward and not self.is_replaced(ref) else None

    def parameter_names(self, ref: ClassRef) -> set[str]:
        """Return the parameter names of the forward that runs; empty if the files do not show it."""
        forward = self.forward(ref)
        return {parameter.name for parameter in forward[1].params} if forward else set()

    def attribute(self, ref: ClassRef, name: str) -> tuple[tuple[ClassRef, Build], ...]:
        """Return the builds of `self.name`, each with the class that sets it: the nearest one that does."""
        return self._attributes(ref).get(name, ())

    def attributes(self, ref: ClassRef) -> Iterator[tuple[str, ClassRef, Build]]:
        """Yield the attributes of a class and its ancestors: the name, the class that sets it, and its build."""
        return ((name, *build) for name, builds in self._attributes(ref).items() for build in builds)

    @cached_method
    def _attributes(self, ref: ClassRef) -> dict[str, tuple[tuple[ClassRef, Build], ...]]:
        attributes: dict[str, tuple[tuple[ClassRef, Build], ...]] = {}
        for ancestor in self.lineage(ref):
            own: dict[str, list[tuple[ClassRef, Build]]] = defaultdict(list)
            for name, built in ancestor.cls.attributes:
                own[name].append((ancestor, built))
            for name, builds in own.items():
                attributes.setdefault(name, tuple(builds))
        return attributes
