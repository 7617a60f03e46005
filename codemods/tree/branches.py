"""Compare the checkpoint calls of inline branches with the direct calls beside them, and tell what they run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.argument_names import is_gradient, is_switch, may_be_state
from ckpt_surgery.codemods.facts.checkpoint_helpers import FIRST_ARGUMENT, TORCH_OPTIONS, ArgumentKeys
from ckpt_surgery.codemods.facts.file_facts import ELEMENT, LOCAL, CheckpointCall, InlineBranch, ModuleCall
from ckpt_surgery.codemods.facts.syntax import Argument
from ckpt_surgery.codemods.providers.checkpointed_functions import LateBinding
from ckpt_surgery.codemods.providers.helpers import FUNCTIONS, METHODS
from ckpt_surgery.codemods.tree.arguments import given_arguments
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef, External, Target
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH, LAYER_CLASS, WITHOUT_LAYERS

_COPIED = re.compile(r"\.(?:clone|contiguous)\(\)")
"""Calls that return a tensor of the same values."""


def layers_of_transformers(tree: SourceTree, owner: ClassRef, inline: InlineBranch) -> str:
    """Return the class of transformers whose layers a branch checkpoints: the layer's, or its model's; else empty.

    From `LAYERS_SINCE` on such layers checkpoint themselves, under the flag that the branch tests.
    """
    names: list[str] = []
    checkpoints = inline.checkpoints if inline.asks_for_flag else ()
    for path in (path for checkpoint in checkpoints for path in owner.cls.paths_behind(inline, checkpoint)):
        layers = [base for target in tree.containers.reached(owner, path) for base in tree.bases.externals(target)]
        names += [base.name for base in layers if base.is_layer_of_transformers]
        # or the model, or part of one, whose stack it is
        stack = path[: path.index(ELEMENT)] if ELEMENT in path and path[0] != LOCAL else ()
        holders: tuple[Target, ...] = (owner,) if len(stack) == 1 else tree.containers.reached(owner, stack[:-1])
        for holder in holders:
            if isinstance(holder, External) or not tree.bases.attribute(holder, stack[-1]):
                names += [base.name for base in tree.bases.externals(holder) if base.holds_layers_of_transformers]
    excluded = (LAYER_CLASS, *WITHOUT_LAYERS)
    return next((name for name in names if not name.rpartition(".")[2].startswith(excluded)), "")


def checkpoints_argument(tree: SourceTree, path: str, late: LateBinding) -> Answer:
    """Tell whether a call checkpoints the late-binding function it is given; of several callees, whether any does."""
    answer = Answer.NO
    for name in late.callees:
        base, _, attribute = name.rpartition(".")
        checkpointed: ArgumentKeys | None = None if name else FIRST_ARGUMENT
        if base == "self":
            refs = [ref for owner in tree.names.defined(path, late.scope) for ref in tree.bases.lineage(owner)]
            checkpointed = next((ref.cls[METHODS][attribute] for ref in refs if attribute in ref.cls[METHODS]), None)
            if any(method.name == attribute for ref in refs for method in ref.cls.methods):
                checkpointed = checkpointed or frozenset()
        elif place := tree.names.function(path, name):
            checkpointed = tree.names.read(place[0])[FUNCTIONS].get(place[1], frozenset())
        if checkpointed is not None and late.argument in checkpointed:
            return Answer.YES
        if checkpointed is None and "checkpoint" in attribute and not attribute.startswith(("save", "load")):
            answer = Answer.UNKNOWN
    return answer


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A parameter of a block, and what the branch and the direct call pass for it; None if nothing.

    `withholds`: only the branch leaves it out, and it may be past state under an unusual name.
    """

    name: str
    branch: Argument | None
    direct: Argument | None
    withholds: bool


def disagreements(tree: SourceTree, owner: ClassRef, inline: InlineBranch) -> Iterator[Disagreement]:
    """Yield how the arguments of the two sides differ, apart from past state and checkpoint options.

    A branch may call a block at several places: each checkpoint call is compared with the direct call most like it.
    """
    for checkpoint in inline.checkpoints:
        calls = (call for call in inline.direct if set(call.paths) & set(checkpoint.paths))
        differences = [tuple(_differences(tree, owner, checkpoint, call)) for call in calls]
        yield from min(differences, key=len, default=())


def _differences(
    tree: SourceTree, owner: ClassRef, checkpoint: CheckpointCall, call: ModuleCall
) -> Iterator[Disagreement]:
    """Yield the differences between two calls. To pass a parameter's default is the same as to leave it out."""
    site = tree.calls.of_any(owner, call)
    if site is None:
        return
    ref, forward = site.blocks[0]
    past = tree.calls.meaning(ref).past_names(forward.params) | {CACHE_SWITCH, *TORCH_OPTIONS}
    inside, outside = given_arguments(checkpoint.args, forward), given_arguments(call.args, forward)
    if inside is None or outside is None:
        return
    parameters = {parameter.name: parameter for parameter in forward.params}
    if any(argument.name == "**" for argument in (*checkpoint.args, *call.args)):
        # what one call unpacks may hold what the other one names
        shared = inside.keys() & outside.keys()
        inside, outside = ({name: given[name] for name in given if name in shared} for given in (inside, outside))
    own_params = owner.cls.forward.params if owner.cls.forward else ()
    var_keywords = {parameter.name for parameter in own_params if parameter.kind == "**"}
    unpacked = [argument for argument in call.args if argument.name == "**" and argument.text in var_keywords]
    if unpacked and all(argument.name != "**" for argument in checkpoint.args):
        # the branch drops what the model's caller adds; a dict made here could be passed by names instead
        yield Disagreement(f"**{unpacked[0].text}", None, unpacked[0], withholds=False)
    for name in dict.fromkeys(name for name in (*inside, *outside) if name not in past):
        branch, direct, parameter = inside.get(name), outside.get(name), parameters.get(name)
        default = parameter.default if parameter else None
        if _value(branch, default) != _value(direct, default):
            annotation = parameter.annotation if parameter else ""
            not_state = is_gradient(name, annotation) or is_switch(name, annotation)
            not_state = not_state or "position" in name or "embed" in name
            dropped = branch.shape == "none" if branch else may_be_state(name)
            passed = direct is not None and direct.is_value
            yield Disagreement(name, branch, direct, withholds=passed and dropped and not not_state)


def _value(argument: Argument | None, default: str | None) -> str | None:
    return _COPIED.sub("", argument.text) if argument else default
