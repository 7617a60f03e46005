"""An inline branch checkpoints a block by hand, next to the direct call.

## What it does
Finds `if self.gradient_checkpointing and self.training: ... checkpoint(layer, ...) ... else: layer(...)` in all its
spellings and under a switch of any name, and checkpoint calls that stand alone; functions with no module behind them
are left to CKPT012. The branch goes, its direct call stays, and the block's class becomes a
`GradientCheckpointingLayer`. An `elif` or a conditional expression is left to you.

Outside transformers' own tree, a branch that works is information, and `apply` leaves it: `apply --select CKPT002`
makes the repair. A branch is a fault there if it disagrees with the direct call, passes keyword arguments that make
training fail, or checkpoints a block that is a layer already.

## Why is this bad?
Two calls of the same block drift apart. At 41 of 294 call sites in transformers 4.52.4 they passed different arguments
(CLVP passes `cache_position` where the block takes `use_cache`), so training with and without checkpointing computes
different things. Once the block is a layer, the branch checkpoints it twice: nothing more is saved, and with
`use_reentrant=True` it is computed three times a step.

A reentrant checkpoint takes no keyword arguments for what it runs: torch raises `ValueError`. By default
torch's own function is reentrant, and that of transformers up to 4.57. `def custom_forward(*inputs)` takes none in
either mode.

## Example
```python
if self.gradient_checkpointing and self.training:                                      # before
    hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, mask)
else:
    hidden_states = layer(hidden_states, attention_mask=mask)

hidden_states = layer(hidden_states, attention_mask=mask)                              # after
```

## Fix safety
Safe if the test is about checkpointing and training alone, the else branch calls the same blocks, and their classes
can be made layers. The else branch counts: if the two disagree, the finding says how. A mode that the branch sets
(`use_reentrant=False`) goes with it, and `gradient_checkpointing_kwargs` decide, as everywhere else. A guard such
as `if use_cache: ... use_cache = False` stays if later code reads the name.

Unsafe where

- the test has other conditions, or reads a configuration that transformers does not;
- the direct call needs another signature first (CKPT005), runs classes with different parameters, or is one
  of `layer.forward`, which bypasses a layer up to transformers 5.22;
- the branch leaves out what may be past state under another name, or checkpoints several modules as one, which keeps
  less than each of them by itself;
- no switch reaches the blocks: they are set to eval mode while their model trains, or are in a plain Python list;
- it is unsafe to make the block a layer (see CKPT001): a call elsewhere passes past state to it by position, the model
  reads more of its outputs where its `use_cache` is True, or something else bypasses the layer.

The branch stays where it cannot be repaired: nothing shows which class it checkpoints, it has no else branch that
calls the same, or it is an `elif` or a conditional expression. It also stays where transformers would not switch a
layer on: no model of transformers among the files holds the class, the model does not say
`supports_gradient_checkpointing = True`, or it sets `gradient_checkpointing` or the checkpoint function by itself; and
where the package asks for a transformers older than 4.52, which has no such layer. Such a branch is information, which
says if it is reentrant. It is unsafe only

- if it disagrees with the direct call about more than caches and what is returned;
- if its blocks are layers already: then both checkpoint, one inside the other. That includes layers of transformers'
  own models, from 4.53 on; it is information if the package asks for older releases only, or nothing is reentrant;
- if keyword arguments make it fail;
- if it is reentrant, and a method freezes what the forward runs before the blocks, or freezes everything and trains
  some of them again: where no input needs a gradient, a reentrant checkpoint trains nothing. Ask for `x.requires_grad`
  in the test, or pass `use_reentrant=False`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckpt_surgery.codemods.facts.file_facts import ELEMENT, LOCAL, CheckpointCall, InlineBranch
from ckpt_surgery.codemods.facts.syntax import Argument
from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.providers.checkpoint_options import REENTRANT
from ckpt_surgery.codemods.providers.checkpointed_functions import CHECKPOINTED
from ckpt_surgery.codemods.repair import KeepElseBranch, SourceRepair
from ckpt_surgery.codemods.repairs.calls import call_repair
from ckpt_surgery.codemods.repairs.conversion import Conversion, aliased, convert, derive, failing_read
from ckpt_surgery.codemods.tree.branches import disagreements, layers_of_transformers
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef, External
from ckpt_surgery.codemods.tree.frozen import frozen_front
from ckpt_surgery.codemods.tree.requirements import only_before, only_since
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.codemods.tree.switches import Missing
from ckpt_surgery.codemods.wording import Because, WordedReason, quoted, replaced_text
from ckpt_surgery.model_patches.release_names import FLAG, LAYERS_SINCE, NON_REENTRANT_SINCE
from ckpt_surgery.text import listed

RULE = Declaration(
    code="CKPT002", repair=RepairKind.SAFE, commit="{}: the inline checkpoint branch gives way to the direct call"
)


_RETURNED = ("output_attentions", "output_hidden_states", "output_router_logits", "return_dict")
"""Options that only add to what a block returns."""


_TWICE = (
    "checkpoints by itself, too: that saves nothing, and with use_reentrant=True it is computed three times a step"
)


class Obstacle(WordedReason):
    """An obstacle to a repair, or to its safety."""

    NESTED = (
        "these layers are transformers' own ({}), which checkpoint themselves from 4.53 on: with use_reentrant=True, "
        "the default up to 4.57, the branch has them run three times a step; there the direct call alone is right"
    )
    NESTED_LATER = (
        "these layers are transformers' own ({}), which checkpoint themselves from 4.53 on: the branch is right for {}"
    )
    NESTED_IDLY = (
        "these layers are transformers' own ({}), which checkpoint themselves: the direct call alone is right"
    )
    NO_BRANCH = "there is no else branch with a direct call to keep"
    NO_ELSE = "the branch has no else of its own"
    OTHER_FORM = "it is {}: make it an `if` of its own, with an `else`"
    SWITCHES = "{} switches the checkpointing of what it runs by itself"
    NOT_CALLED = "the else branch does not call {}"
    UNKNOWN_CALLEE = "the class of {} cannot be determined ({})"
    NOTHING_KNOWN = "the class of {} cannot be determined (nothing shows what it holds)"
    TORCH_MODULE = "torch's own {} stays without checkpointing"
    SHARED_BLOCK = "another branch, which stays, also checkpoints {}: it would be computed three times"
    OTHER_STATEMENTS = "the branch holds statements that the else branch lacks"
    OTHER_SWITCH = "gradient_checkpointing_enable() does not set what the test asks for"
    OTHER_CONFIGURATION = "the test asks {}'s own configuration, which transformers does not read"
    BY_FORWARD = "`{}` bypasses a layer up to transformers 5.22: call the block itself"
    IN_EVAL = "{} sets {} to eval mode: a layer asks for its own mode, the branch for that of its model"
    UNREGISTERED = "{} is a plain list, whose modules nothing would switch on: make it a ModuleList first"
    SEVERAL_MODULES = "{} checkpoints several modules as one: each by itself keeps what is between them, too"
    OTHER_CONDITIONS = "the test also asks for {}"
    SIGNATURE_ORDER = "{} can be positional only after CKPT005"
    STAYS = "the direct call keeps by keyword what the branch passes by position: {}"
    WITHHELD = "the branch goes without {}: if that is past state, a layer would write it twice"


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every inline branch and every checkpoint call that stands alone.

    Calls on functions, with no module behind them that could become a layer, are left to CKPT012.
    """
    places: list[tuple[ClassRef, InlineBranch]] = []
    for owner in context.tree.blocks.with_inlines:
        read = context.tree.names.read(owner.path)[CHECKPOINTED]
        functions = {function.span for function in read.calls if function.option != "model"}
        for inline in owner.cls.inlines:
            others = [call for call in inline.checkpoints if call.span not in functions]
            paths = (path for call in inline.checkpoints for path in owner.cls.paths_behind(inline, call))
            if others or any(context.tree.containers.reached(owner, path) for path in paths):
                places.append((owner, inline))
    repairs = [_repair(context, *place) for place in places]
    blocks = [
        set(context.tree.containers.classes_at(owner, [path for call in inline.checkpoints for path in call.paths]))
        for owner, inline in places
    ]
    staying = {ref for repair, refs in zip(repairs, blocks, strict=True) if repair.reasons for ref in refs}
    for (owner, inline), repair, refs in zip(places, repairs, blocks, strict=True):
        if refs & staying and not repair.reasons:
            names = ", ".join(sorted(ref.name for ref in refs & staying))
            repair = replace(repair, reasons=(Obstacle.SHARED_BLOCK.about(names),))
        yield _finding(context, owner, inline, repair)


def _finding(context: RuleContext, owner: ClassRef, inline: InlineBranch, repair: Conversion) -> Finding:
    tree, names = context.tree, list(dict.fromkeys(checkpoint.callee for checkpoint in inline.checkpoints))
    differences = [*disagreements(tree, owner, inline)]
    harmful = [item for item in differences if not (item.withholds or "cache" in item.name or item.name in _RETURNED)]
    notes = {} if repair.repairs and tree.layers.is_core(owner.path) else dict(_notes(tree, owner, inline))
    twice = ", ".join(dict.fromkeys(_checkpointed_twice(context, owner, inline)))
    nested = any(reason.reason is Obstacle.NESTED for reason in repair.reasons)
    unclaimed = any(reason.reason is Missing.FLAG for reason in repair.reasons)
    never_runs = unclaimed and inline.asks_for_flag and "config" not in (inline.test or "")
    fails = any(notes.values()) and not never_runs
    is_fault = fails or bool(harmful or twice or nested)
    is_repaired = bool(repair.repairs) and (is_fault or not tree.keeps_branches(owner.path))
    parts = [f"{listed(names)} {'are' if names[1:] else 'is'} checkpointed by {_form(inline)}"]
    conflicts = dict.fromkeys(
        f"`{item.name}`: {_shown(item.branch)} under checkpointing, {_shown(item.direct)} otherwise"
        for item in (differences if is_repaired else harmful)
    )
    if conflicts:
        parts.append(f"the branches disagree: {'; '.join(conflicts)}")
    if twice:
        parts.append(f"{twice} {_TWICE}")
    parts += [note for note, is_sure in notes.items() if is_sure or not is_repaired]
    reasons = "; ".join(dict.fromkeys(reason.text for reason in repair.reasons))
    if is_repaired or nested:
        parts += filter(None, [reasons])
    if is_repaired:
        if modes := ", ".join(inline.modes):
            parts.append(f"`{modes}` goes with the branch: gradient_checkpointing_kwargs choose the mode from now on")
    elif harmful:
        one_sided = all(item.branch is None or item.branch.text == "None" for item in harmful)
        where = f"where {quoted(dict.fromkeys(item.name for item in harmful))} is given, " if one_sided else ""
        parts.append(f"pass the same in both: {where}the block gets something else under checkpointing")
    elif repair.repairs:
        command = f"`apply {'--unsafe ' * bool(reasons)}--select {RULE.code}`"
        parts += [f"it works as it is, and {command} puts layers in its place", *filter(None, [reasons])]
    elif reasons and not (fails or nested):
        parts.append(f"{'not repaired' if twice else 'left as it is'}: {reasons}")
    repairs, applicability = repair.repairs, Applicability.INFO
    if is_repaired or is_fault:
        applicability = Applicability.UNSAFE if reasons or not is_repaired else Applicability.SAFE
    if inline.method == "forward" and context.tree.bases.is_replaced(owner):
        parts.append(replaced_text(owner.name))
        repairs, applicability = (), Applicability.UNKNOWN
    found_here = context.finding(RULE, owner.path, inline.span, owner.name, "; ".join(parts), applicability, repairs)
    return replace(found_here, differing=tuple(dict.fromkeys(item.name for item in harmful)))


def _checkpointed_twice(context: RuleContext, owner: ClassRef, inline: InlineBranch) -> Iterator[str]:
    """Yield the layers that a branch checkpoints a second time, if a model of transformers switches both on."""
    tree = context.tree
    if inline.conditions or tree.switches.of_branches(owner) or _switched(context, owner, inline):
        return
    calls = (call for call in inline.checkpoints if not call.callee.endswith(".forward"))
    paths = [path for call in calls for path in owner.cls.paths_behind(inline, call)]
    yield from (ref.name for ref in tree.containers.classes_at(owner, paths) if tree.bases.is_layer(ref) is Answer.YES)


def _form(inline: InlineBranch) -> str:
    """Return the words for what a checkpoint call is part of; one under no test is made by hand."""
    if inline.test is None:
        return "hand"
    if inline.is_expression:
        return "a conditional expression"
    return "an inline branch" if "checkpoint" in inline.test else f"a branch on `{inline.test}`"


def _notes(tree: SourceTree, owner: ClassRef, inline: InlineBranch) -> Iterator[tuple[str, bool]]:
    """Yield notes on the mode and the keywords of checkpoint calls, and whether each is a fault."""
    reentrant = tree.names.read(owner.path)[REENTRANT]
    for call in inline.checkpoints:
        keywords = quoted(call.refused or call.keywords)
        if call.refused:
            yield f"{call.callee} gets {keywords} by keyword, which it does not take: bind it where that is made", True
        elif call.uses_model_function and keywords:
            said = f"with use_reentrant=True it refuses {keywords} by keyword"
            default = only_before(NON_REENTRANT_SINCE, tree.layers.required(owner.path))
            yield said + ", and that is the default up to transformers 4.57: pass it by position" * default, default
        elif call.span in reentrant:
            is_said = any(argument.name == "use_reentrant" for argument in reentrant[call.span])
            how = "with use_reentrant=True" if is_said else "without use_reentrant, which means True up to torch 2.13"
            if keywords:
                yield f"called {how}, it refuses {keywords} by keyword: pass use_reentrant=False", True
            elif ".requires_grad" not in (inline.test or ""):
                freezing = frozen_front(tree, owner, owner.cls.paths_behind(inline, call))
                where = f"what {freezing} freezes" if freezing else "frozen layers"
                text = f"called {how}: behind {where} no input needs a gradient, and what it runs is not trained"
                text += "; pass use_reentrant=False" * bool(freezing)
                yield text, bool(freezing)


def _shown(argument: Argument | None) -> str:
    return "left out" if argument is None else f"`{'**' * (argument.name == '**')}{argument.text}`"


def _repair(context: RuleContext, owner: ClassRef, inline: InlineBranch) -> Conversion:
    their_layers = layers_of_transformers(context.tree, owner, inline)
    if their_layers:
        return Conversion(reasons=(_nested(context, owner, inline, their_layers),))
    missing = context.tree.switches.of_branches(owner)
    if missing:
        return Conversion(reasons=(missing,))
    obstacle = _obstacle(inline) or _switched(context, owner, inline)
    if obstacle:
        return Conversion(reasons=(obstacle,))
    results = [_layers(context, owner, checkpoint, inline) for checkpoint in inline.checkpoints]
    layers = [result for result in results if isinstance(result, Conversion)]
    for result in results:
        # A block behind the call that does not become a layer would lose its checkpointing.
        if not isinstance(result, Conversion) and not (layers and result.reason is Obstacle.TORCH_MODULE):
            return Conversion(reasons=(result,))
    made = [repair for part in layers for repair in part.repairs]
    for call, plan in context.tree.calls.lost_with(owner, inline):
        if plan.repair:
            made.append(call_repair(context.tree, owner.path, call.span, plan.repair))
    branch = context.tree.places(owner.path).branch(inline.span)
    kept = KeepElseBranch(owner.path, inline.span, branch, inline.guards, context.tree.width)
    repairs = (*dict.fromkeys(made), kept)
    return Conversion(repairs, tuple(_doubts(context, owner, inline, layers)))


def _nested(context: RuleContext, owner: ClassRef, inline: InlineBranch, layers: str) -> Because:
    """Return why layers of transformers need no branch, in the releases that the package asks for."""
    required = context.tree.layers.required(owner.path)
    imports = [item for item in context.tree.names.read(owner.path).imports if item.original.endswith("_DOCSTRING")]
    # these docstrings were removed when layers were added: such an import works in older releases only
    old = next((item for item in imports if item.module.startswith("transformers.models.")), None)
    if old or only_before(LAYERS_SINCE, required):
        return Obstacle.NESTED_LATER.about(layers, f"releases with {old.original}" if old else ", ".join(required))
    modes = {*inline.modes} or {"" if call.uses_model_function else "torch's" for call in inline.checkpoints}
    never_reentrant = only_since(NON_REENTRANT_SINCE, required) and modes <= {"", "use_reentrant=False"}
    return (Obstacle.NESTED_IDLY if never_reentrant else Obstacle.NESTED).about(layers)


def _obstacle(inline: InlineBranch) -> Because | None:
    """Return why no direct call can replace a branch."""
    if inline.test is None:
        return Obstacle.NO_BRANCH.about()
    if not inline.has_else or inline.else_is_elif:
        return Obstacle.NO_ELSE.about()
    if inline.is_elif or inline.is_expression:
        return Obstacle.OTHER_FORM.about("an elif" if inline.is_elif else "a conditional expression")
    for checkpoint in inline.checkpoints:
        # calls of `self.conv` or `self.mid.conv` are not block calls, and not recorded one by one
        called = not any({ELEMENT, LOCAL} & set(path) for path in checkpoint.paths)
        called = called or any(set(call.paths) & set(checkpoint.paths) for call in inline.direct)
        if checkpoint.wrapping == "closure":
            called = any(call.callee == checkpoint.callee for call in inline.direct)
        if not called:
            return Obstacle.NOT_CALLED.about(checkpoint.callee)
    return None


def _switched(context: RuleContext, owner: ClassRef, inline: InlineBranch) -> Because | None:
    """Return the obstacle that a checkpointed function sets a layer's own flag, and so switches it itself."""
    source = context.tree.source(owner.path)
    switching = (call.callee for call in inline.checkpoints if call.body and FLAG in source.of(call.body))
    return next(map(Obstacle.SWITCHES.about, switching), None)


def _doubts(
    context: RuleContext, owner: ClassRef, inline: InlineBranch, layers: list[Conversion]
) -> Iterator[Because]:
    tree, test = context.tree, inline.test or ""
    if inline.does_more:
        yield Obstacle.OTHER_STATEMENTS.about()
    if FLAG not in test:
        yield Obstacle.OTHER_SWITCH.about()
    if "config" in test and not (tree.layers.is_core(owner.path) or tree.bases.is_pretrained(owner)):
        yield Obstacle.OTHER_CONFIGURATION.about(owner.name)
    by_forward = next((call.callee for call in inline.direct if call.callee.endswith(".forward")), None)
    if by_forward:
        yield Obstacle.BY_FORWARD.about(by_forward)
    # blocks that would not checkpoint as layers, because of their own mode or place
    paths = dict.fromkeys(path for call in inline.checkpoints for path in owner.cls.paths_behind(inline, call))
    for ref in context.tree.containers.classes_at(owner, paths):
        if holder := context.tree.modes.in_eval.get(ref):
            yield Obstacle.IN_EVAL.about(holder.name, ref.name)
    stacks = (context.tree.modes.unregistered_at(owner, path) for path in paths)
    yield from (Obstacle.UNREGISTERED.about(stack) for stack in stacks if stack)
    together = [call for call in inline.checkpoints if call.runs_several]
    read = tree.names.read(owner.path)[CHECKPOINTED]
    # functions that see other values in the recompute, because the loop rebinds names
    rebinding = {function.span for function in read.calls if any(capture.rebound for capture in function.captures)}
    several = [call.callee for call in together if call.span not in rebinding]
    if several:
        yield Obstacle.SEVERAL_MODULES.about(", ".join(several))
    if inline.conditions:
        yield Obstacle.OTHER_CONDITIONS.about(" and ".join(inline.conditions))
    withheld = dict.fromkeys(item.name for item in disagreements(tree, owner, inline) if item.withholds)
    if withheld:
        yield Obstacle.WITHHELD.about(quoted(withheld))
    unknown = (plan.unknown for _, plan in tree.calls.lost_with(owner, inline))
    yield from (Obstacle.STAYS.about(reason.text) for reason in unknown if reason)
    sites = (tree.calls.of_any(owner, call) for call in inline.direct)
    blocked = next((names for site in sites if site and (names := tree.calls.plan(site).blocked)), ())
    if blocked:
        yield Obstacle.SIGNATURE_ORDER.about(", ".join(blocked))
    else:
        yield from (reason for part in layers for reason in part.reasons)


def _layers(
    context: RuleContext, owner: ClassRef, checkpoint: CheckpointCall, inline: InlineBranch
) -> Conversion | Because:
    """Return the repairs that make layers of the classes behind a checkpoint call, or why there are none."""
    tree = context.tree
    paths = owner.cls.paths_behind(inline, checkpoint)
    refs = tree.containers.classes_at(owner, paths)
    externals = [t for path in paths for t in tree.containers.reached(owner, path) if isinstance(t, External)]
    aliases = {alias.original for ref in refs if (alias := tree.names.guarded_alias(owner.path, ref.name))}
    foreign = [external.name for external in externals if not external.is_plain]
    unknown = ", ".join(name for name in foreign if name not in aliases)
    if unknown:
        return Obstacle.UNKNOWN_CALLEE.about(checkpoint.callee, unknown)
    if not (refs or externals):
        return Obstacle.NOTHING_KNOWN.about(checkpoint.callee)
    if not refs:
        return Obstacle.TORCH_MODULE.about(externals[0].name)
    made: list[SourceRepair] = []
    doubts: list[Because] = []
    for ref in refs:
        derived = derive(tree, owner, paths, ref)
        if derived:
            made += derived
            continue
        conversion = convert(tree, ref, context.argument_repairs, recomputed=not inline.modes)
        if not isinstance(conversion, Conversion):
            return conversion
        made += [*conversion.repairs, *aliased(tree, owner, ref)]
        doubts += filter(None, (*conversion.reasons, failing_read(tree, ref)))
    return Conversion(tuple(made), tuple(doubts[:1]))
