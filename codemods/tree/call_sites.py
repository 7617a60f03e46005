"""Resolve calls of blocks: which classes a call may run, and what is wrong with its arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from ckpt_surgery.codemods.facts.argument_names import is_past_state, is_table, may_carry_gradient
from ckpt_surgery.codemods.facts.file_facts import (
    CarriedArgument,
    CheckpointCall,
    ForwardSignature,
    InlineBranch,
    ModuleCall,
)
from ckpt_surgery.codemods.providers.trained_parameters import TRAINED_PARAMETERS
from ckpt_surgery.codemods.tree.arguments import (
    ALL_REPAIRS,
    NO_RESULTS,
    ArgumentPlan,
    ArgumentRepair,
    GivenResults,
    Meaning,
    UnknownReason,
    bind,
    binds_alike,
    given_arguments,
)
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.blocks import Blocks
from ckpt_surgery.codemods.tree.caching import cached_method
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.containers import Containers
from ckpt_surgery.codemods.tree.layer_releases import LayerReleases
from ckpt_surgery.codemods.wording import Because
from ckpt_surgery.model_patches import family_facts

_NO_GRADIENT = re.compile(r"^(?:is|has|do|num|n)_|pos|shape|point|index|idx|flag|layer|level|step|offset")
"""Names of what has no gradient: a checkpoint call passes everything by position, so it proves nothing about these."""


@dataclass(frozen=True, slots=True, eq=False)
class CallSite:
    """A call of a block. `blocks` are the classes it may run, each with its forward.

    `others` are other classes that it may run: their names and forwards, None for a forward that is not at hand.
    """

    owner: ClassRef
    call: ModuleCall
    blocks: tuple[tuple[ClassRef, ForwardSignature], ...]
    others: tuple[tuple[str, ForwardSignature | None], ...] = ()


@dataclass(eq=False)
class CallSites:
    """The calls of a tree's blocks."""

    bases: BaseChains
    containers: Containers
    blocks: Blocks
    layers: LayerReleases

    @cached_method
    def all(self) -> tuple[CallSite, ...]:
        """Return every call of a layer, or of a plain block that this run makes one."""
        sites = (self.of(owner, call) for owner in self.bases.names.checked_classes() for call in owner.cls.calls)
        return tuple(site for site in sites if site and any(ref not in self.blocks.staying for ref, _ in site.blocks))

    def of(self, owner: ClassRef, call: ModuleCall, becoming: Collection[ClassRef] = ()) -> CallSite | None:
        """Return the site of a call that may run layers, or blocks that should be layers, as those in `becoming`."""
        refs = self.containers.classes_at(owner, call.paths)
        return self._site(owner, call, [ref for ref in refs if ref in becoming or self.blocks.checkpoints(ref)])

    def of_any(self, owner: ClassRef, call: ModuleCall) -> CallSite | None:
        """Return the site of a call that may run classes of the tree, blocks or not."""
        return self._site(owner, call, self.containers.classes_at(owner, call.paths))

    def replaced(self) -> Iterator[tuple[ClassRef, ModuleCall, ClassRef]]:
        """Yield the caller, the call, and whichever of caller and block gets another forward assigned."""
        for owner in self.bases.names.checked_classes():
            for call in owner.cls.calls:
                refs = self.containers.classes_at(owner, call.paths)
                replaced = self._replaced(owner, call, refs) if any(map(self.blocks.checkpoints, refs)) else None
                if replaced:
                    yield owner, call, replaced

    def _replaced(self, owner: ClassRef, call: ModuleCall, refs: Collection[ClassRef]) -> ClassRef | None:
        called = (owner, *refs) if call.method == "forward" else refs
        return next(filter(self.bases.is_replaced, called), None)

    def _site(self, owner: ClassRef, call: ModuleCall, refs: Collection[ClassRef]) -> CallSite | None:
        if not refs or self._replaced(owner, call, refs):
            return None
        blocks = tuple((ref, forward[1]) for ref in refs if (forward := self.bases.forward(ref)))
        return CallSite(owner, call, blocks, self._others(owner, call, blocks)) if blocks else None

    def _others(
        self, owner: ClassRef, call: ModuleCall, blocks: Collection[tuple[ClassRef, ForwardSignature]]
    ) -> tuple[tuple[str, ForwardSignature | None], ...]:
        own = {target for ref, _ in blocks for target in (ref, ref.name)}  # `if` may import what `else` defines
        targets = dict.fromkeys(target for path in call.paths for target in self.containers.reached(owner, path))
        others = [target for target in targets if not own & {target, target.name}]
        forwards = [self.bases.forward(target) if isinstance(target, ClassRef) else None for target in others]
        return tuple((other.name, forward and forward[1]) for other, forward in zip(others, forwards, strict=True))

    def owners(self, site: CallSite) -> tuple[ClassRef, ...]:
        """Return the classes that define the forwards which a call runs."""
        forwards = (self.bases.forward(block) for block, _ in site.blocks)
        return tuple(dict.fromkeys(forward[0] for forward in forwards if forward))

    @cached_method
    def meaning(self, block: ClassRef) -> Meaning:
        """Return what the parameters of a block's forward mean, by their names, its family and its calls."""
        given = self._given.get(self.bases.with_forward(block), NO_RESULTS)
        return Meaning(block.name, family_facts(block.path), given)

    @cached_property
    def _given(self) -> dict[ClassRef | None, GivenResults]:
        """For each class with a forward, the parameters that calls give what blocks returned."""
        given: dict[ClassRef | None, GivenResults] = {}
        for owner in self.bases.names.checked_classes():
            beside = self._checkpoints_beside(owner)
            for call in owner.cls.calls:
                site = self.of(owner, call) if call.carried or call in beside else None
                for block, forward in site.blocks if site else ():
                    definer = self.bases.with_forward(block)
                    results = self._results(owner, call, forward)
                    named = GivenResults(_by_position(beside[call], call, forward) if call in beside else frozenset())
                    before = given.get(definer, NO_RESULTS)
                    given[definer] = GivenResults(*map(frozenset.union, before, results, named))
        return given

    def _results(self, owner: ClassRef, call: ModuleCall, forward: ForwardSignature) -> GivenResults:
        """Return the parameters that one call gives what blocks returned, or by keyword what has parameters."""
        bound = bind(call.args, forward)
        names = {} if isinstance(bound, Because) else {position: name for name, position in bound.items()}
        tensors, containers = set[str](), set[str]()
        for carried in call.carried:
            name = names.get(carried.position, "")
            by_keyword = call.args[carried.position].name and not carried.in_container
            if is_table(name):
                trained = {name for base in self.bases.lineage(owner) for name in base.cls[TRAINED_PARAMETERS]}
                gives = by_keyword and any(len(path) == 1 and path[0] in trained for path in carried.paths)
            else:
                gives = self._is_of_blocks(owner, carried) or (
                    by_keyword and _may_be_gradient(name, forward) and self._is_learned(owner, carried)
                )
            if name and gives:
                (containers if carried.in_container else tensors).add(name)
        return GivenResults(frozenset(tensors), frozenset(containers))

    def _is_of_blocks(self, owner: ClassRef, carried: CarriedArgument) -> bool:
        return any(map(self.blocks.checkpoints, self.containers.classes_at(owner, carried.paths)))

    def _is_learned(self, owner: ClassRef, carried: CarriedArgument) -> bool:
        """Tell whether an argument holds a parameter of the caller, or what a module with parameters returned."""
        return any(self.containers.has_parameters(owner, path) for path in carried.paths)

    def unpacked(self, owner: ClassRef, call: ModuleCall) -> str:
        """Return the argument that a call unpacks by `**` and that holds gradient tensors; empty if there is none."""
        for carried in call.carried:
            argument = call.args[carried.position]
            if argument.name == "**" and (self._is_of_blocks(owner, carried) or self._is_learned(owner, carried)):
                return f"**{argument.text}"
        return ""

    def lost_with(self, owner: ClassRef, inline: InlineBranch) -> Iterator[tuple[ModuleCall, ArgumentPlan]]:
        """Yield the direct calls beside an inline branch that pass by keyword what the branch passes by position.

        Each comes with the plan that makes it positional: once the branch is gone, nothing shows that this is needed.
        """
        beside = self._checkpoints_beside(owner)
        for call in inline.direct:
            site = self.of(owner, call) if call in beside else None
            if site and any(_by_position(beside[call], call, forward) for _, forward in site.blocks):
                yield call, self.plan(site)

    def _checkpoints_beside(self, owner: ClassRef) -> dict[ModuleCall, CheckpointCall]:
        """Map direct calls to the checkpoint call of the same blocks; empty in transformers' own code."""
        inlines = owner.cls.inlines if owner.cls.inlines and not self.layers.is_core(owner.path) else ()
        return {
            call: checkpoint
            for inline in inlines
            for call, checkpoint in product(inline.direct, inline.checkpoints)
            if set(call.paths) & set(checkpoint.paths)
        }

    @cached_method
    def plan(self, site: CallSite, repairs: frozenset[ArgumentRepair] = ALL_REPAIRS) -> ArgumentPlan:
        """Return the plan for a call; if it may run several classes, one that is right for each of them."""
        plans = [ArgumentPlan.of(site.call.args, forward, self.meaning(ref), repairs) for ref, forward in site.blocks]
        first = next((plan for plan in plans if plan.arguments is not None), plans[0])
        given, new = site.call.args, first.arguments or ()
        unfit = [name for name, forward in site.others if not (forward and binds_alike(given, new, forward))]
        if len({plan.arguments for plan in plans}) > 1:
            unknown = UnknownReason.SIGNATURES.about(", ".join(ref.name for ref, _ in site.blocks))
        elif new and unfit:
            unknown = UnknownReason.OTHERS.about(", ".join(unfit))
        else:
            return plans[0]
        return replace(first, hidden=(), arguments=None, doubtful=(), unknown=unknown)

    def plan_of_past_state(self, site: CallSite, repairs: Collection[ArgumentRepair]) -> ArgumentPlan | None:
        """Return the plan of a call that passes past state by position and does harm by it; None for other calls."""
        plan = self.plan(site, frozenset({*repairs, ArgumentRepair.PAST_STATE}))
        block, _ = site.blocks[0]
        harmless = not plan.positional_past or self.bases.flag(block, "_can_checkpoint_with_cache") == "True"
        return None if harmless else plan


def _by_position(checkpoint: CheckpointCall, call: ModuleCall, forward: ForwardSignature) -> frozenset[str]:
    """Return the parameters that a checkpoint call gets by position and the direct call by keyword.

    Only by position do they keep a gradient. Those without one, as their names say, are left out.
    """
    inside, outside = given_arguments(checkpoint.args, forward) or {}, given_arguments(call.args, forward) or {}
    return frozenset(
        name
        for name in inside.keys() & outside.keys()
        if (inside[name].name is None and inside[name].shape == "other" and outside[name].name)
        and not _NO_GRADIENT.search(name)
        and _may_be_gradient(name, forward)
    )


def _may_be_gradient(name: str, forward: ForwardSignature) -> bool:
    annotation = next((parameter.annotation for parameter in forward.params if parameter.name == name), "")
    return not is_past_state(name) and may_carry_gradient(name, annotation)
