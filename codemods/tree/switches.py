"""Tell whether transformers would switch the checkpointing of a class on if its blocks were layers.

Transformers switches the layers of models that say `supports_gradient_checkpointing = True`. A model that does not, or
that switches its inline branches itself, would lose its checkpointing if layers replaced them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ckpt_surgery.codemods.providers.switches import OWN_SWITCHES
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.caching import cached_method, reachable
from ckpt_surgery.codemods.tree.classes import BASE_MODEL, Answer, ClassRef
from ckpt_surgery.codemods.tree.containers import Containers
from ckpt_surgery.codemods.tree.layer_releases import LayerReleases
from ckpt_surgery.codemods.wording import Because, WordedReason
from ckpt_surgery.model_patches.release_names import CLAIM, FLAG


class Missing(WordedReason):
    """The reasons why nothing in transformers would switch a layer on, with advice."""

    # why a class cannot be a layer
    RELEASE = (
        "the package asks for {}, and GradientCheckpointingLayer came with 4.52: checkpoint by an inline branch, or "
        "raise the requirement"
    )
    TRANSFORMERS = (
        "nothing of transformers holds {}, so nothing would switch a layer's checkpointing on: an inline branch is "
        "the way to checkpoint there"
    )
    # why a class needs its inline branches
    BRANCH_RELEASE = "the package asks for {}, and GradientCheckpointingLayer came with 4.52"
    NO_TRANSFORMERS = "nothing of transformers holds {}, so nothing would switch a layer on there"
    FUNCTIONS = "the functions of {} are put into models that are not among the files"
    MODEL = (
        "no model of transformers that holds {} and says `supports_gradient_checkpointing = True` is among the files"
    )
    FLAG = "{} does not say `supports_gradient_checkpointing = True`, so nothing would switch a layer on there"
    OWN_SWITCH = "{} switches its checkpointing by itself (`{}`), which would reach no layer"


@dataclass(eq=False)
class Switches:
    """What switches the checkpointing of a tree's classes, and what a layer would lack."""

    bases: BaseChains
    containers: Containers
    layers: LayerReleases

    @cached_method
    def of_branches(self, owner: ClassRef) -> Because | None:
        """Return why a class needs its inline branches to be switched on; None if layers would do as well."""
        return self._by_models(owner) or self._release(owner, Missing.BRANCH_RELEASE)

    def of_layer(self, ref: ClassRef) -> Because | None:
        """Return why a class cannot be a layer in its file; None if it can."""
        files = {model.path for model in self._above(ref) if self._claims(model)}
        if not self.layers.uses_transformers(ref.path) and not any(map(self.layers.needs_transformers, files)):
            return Missing.TRANSFORMERS.about(ref.name)
        return self._release(ref, Missing.RELEASE)

    def _release(self, ref: ClassRef, reason: Missing) -> Because | None:
        requirement = self.layers.old_requirement(ref.path)
        return reason.about(requirement) if requirement else None

    def _by_models(self, owner: ClassRef) -> Because | None:
        """Return what the models that hold a class lack; None if they would switch its layers on."""
        above = self._above(owner)
        if own := self._own_switch(owner, above):
            return own
        claims = self._all_claims(above) or self._all_claims(self.bases.names.classes(owner.path))
        if {Answer.YES, Answer.NO} & set(claims.values()):
            # Nothing is lost if the branches need the function that transformers sets together with the flag, nor in
            # transformers itself, whose users do not set `gradient_checkpointing` by hand.
            calls = [call for inline in owner.cls.inlines for call in inline.checkpoints]
            if self.layers.is_core(owner.path) or all(call.uses_model_function for call in calls):
                return None
            for ref, claim in claims.items():
                if claim is Answer.NO and not any(claims.get(other) is Answer.YES for other in self._above(ref)):
                    return Missing.FLAG.about(ref.name)
            return None
        if not claims and (any(map(self._is_foreign, above)) or not self.layers.uses_transformers(owner.path)):
            return Missing.NO_TRANSFORMERS.about(owner.name)
        return (Missing.MODEL if owner.cls.bases else Missing.FUNCTIONS).about(owner.name)

    def _own_switch(self, owner: ClassRef, above: tuple[ClassRef, ...]) -> Because | None:
        """Find the switch that a class, an ancestor of it or a model that holds it brings along."""
        value = self.bases.flag(owner, FLAG)
        if value not in (None, "False"):
            return Missing.OWN_SWITCH.about(owner.name, f"{FLAG} = {value}")
        family = {*self.bases.lineage(owner), *self.bases.heirs(owner)}
        for ref in dict.fromkeys([owner, *self.bases.lineage(owner), *above]):
            for target, value in ref.cls[OWN_SWITCHES]:
                if ref in family or target.count(".") > 1 or not value:
                    how = f"{target} = {value}" if value else target.removeprefix("self.")
                    return Missing.OWN_SWITCH.about(ref.name, how)
        return None

    def _is_foreign(self, owner: ClassRef) -> bool:
        externals = self.bases.externals(owner)
        return not all(target.is_plain or target.is_of_transformers for target in externals)

    def _all_claims(self, refs: Iterable[ClassRef]) -> dict[ClassRef, Answer]:
        return {ref: claim for ref in refs if (claim := self._claims(ref))}

    def _claims(self, ref: ClassRef) -> Answer | None:
        """Tell whether a model of transformers claims gradient checkpointing; None if it is not such a model."""
        externals = self.bases.externals(ref)
        models = [target for target in externals if target.is_of_family]
        if not models and not any(target.name.endswith(BASE_MODEL) for target in externals):
            return None
        flag = self.bases.flag(ref, CLAIM)
        if flag is not None:
            return {"True": Answer.YES, "False": Answer.NO}.get(flag, Answer.UNKNOWN)
        if models:
            return Answer.YES  # transformers' own models do
        return Answer.NO if self.bases.is_pretrained(ref) else Answer.UNKNOWN

    @cached_method
    def _above(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """Return a class, what inherits from it, and all that holds one of these, at any depth."""
        return reachable([ref], lambda here: (*self.bases.heirs(here), *self._holders.get(here, ())))

    @cached_property
    def _holders(self) -> dict[ClassRef, list[ClassRef]]:
        holders: dict[ClassRef, list[ClassRef]] = {}
        for holder in self.bases.names.checked_classes():
            for part in self.containers.parts(holder):
                holders.setdefault(part, []).append(holder)
        return holders
