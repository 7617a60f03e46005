"""The words for faults, skips and causes, and the rule behind a cause. No decision depends on the words.

A fault's clauses are templates over its details and the `underlying` fault, with three formats of their own: `size`
for bytes, `clause` for a sentence without its full stop, and `words` for a kind of loop or precision. A cause's
sentence is a template over its names: `block` and `outer` are classes of blocks, `argument` is a parameter of the
forward of a block, `model` the class of the model and `module` the full name of a module.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, NamedTuple

from ckpt_surgery.measure.kinds import CauseKind, FaultKind, LoopKind, Precision, SkipKind
from ckpt_surgery.text import ranks_in_words, size


class FaultText(NamedTuple):
    """The clauses of a fault: "expected ..., saw ..."."""

    expected: str
    seen: str


_GRADIENTS = "({count} of {total} gradients)"
_MEAN = "the mean of what each rank computes alone"

FAULTS: Mapping[FaultKind, tuple[str, str]] = {
    FaultKind.NOT_SWITCHED_ON: ("checkpointing that can be switched on", "{error:clause}"),
    FaultKind.IRREPRODUCIBLE: (
        "two equal runs without checkpointing",
        "{underlying.seen} after {underlying.expected}",
    ),
    FaultKind.REFERENCE_RAISED: ("a step without checkpointing that ends", "{error}"),
    FaultKind.STEP_RAISED: ("a step with checkpointing that ends", "{error}"),
    FaultKind.STEP_UNFINISHED: ("the step to end", "{error}"),
    FaultKind.BACKWARD_UNFINISHED: ("the backward to end", "{error}"),
    FaultKind.SURGERY_UNFINISHED: ("a surgery that can be done", "{error}"),
    FaultKind.REBUILD_UNFINISHED: ("the model to be built a second time", "{error}"),
    FaultKind.NO_BLOCKS: ("blocks to checkpoint", "none in this model"),
    FaultKind.NOTHING_CHECKPOINTED: (
        "a step that keeps less with checkpointing on",
        "one that keeps as much: nothing is checkpointed",
    ),
    FaultKind.NOT_RECOMPUTED: ("one recompute in the backward", "none"),
    FaultKind.SWITCHED_OFF: (
        "checkpointing to be on, as it is in other blocks of the model as it was given",
        "it switched off in these",
    ),
    FaultKind.PART_NOT_RECOMPUTED: (
        "one recompute in the backward, as of other parts of its block",
        "no recompute: it keeps what it makes",
    ),
    FaultKind.RECOMPUTE_COUNT: (
        "{expected} entries a step",
        "{found} ({forward} in the forward, {backward} in the backward)",
    ),
    FaultKind.FORWARD_COUNT: ("{reference} entries in the forward", "{forward}"),
    FaultKind.GRADIENT_LOST: ("a gradient", f"none or only zeros {_GRADIENTS}"),
    FaultKind.GRADIENT_GAINED: ("no gradient", f"one {_GRADIENTS}"),
    FaultKind.LOST_IN_REFERENCE: (
        "a gradient",
        f"none with checkpointing off either: the model checkpoints by itself {{own}} {_GRADIENTS}",
    ),
    FaultKind.LOSS_VALUE: ("the loss {reference:.9g}", "{found:.9g}"),
    FaultKind.OUTPUT_VALUE: (
        "the outputs of a step without checkpointing",
        "other outputs ({count} of {total} tensors)",
    ),
    FaultKind.GRADIENT_VALUE: ("equal gradients", f"a relative error up to {{error:.2g}} {_GRADIENTS}"),
    FaultKind.BUFFER_CHANGED: ("the values after a step without checkpointing", "others ({count} of {total} buffers)"),
    FaultKind.BUFFER_LATE: (
        "the values after a forward without checkpointing",
        "others, until the backward writes them ({count} of {total} buffers)",
    ),
    FaultKind.CACHE_WRITTEN: (
        "size {forward} after the backward as after the forward",
        "{backward} (before the step {before})",
    ),
    FaultKind.WRITTEN_AGAIN: (
        "the same there after the backward as after the forward",
        "something else: a recompute writes there again",
    ),
    FaultKind.CACHE_STEP_RAISED: ("a step with a cache that ends, as it does without checkpointing", "{error}"),
    FaultKind.RNG_NOT_RESTORED: ("the randomness of the forward in the recompute", "another"),
    FaultKind.RNG_MOVED: ("a backward that draws no random numbers", "one that does"),
    FaultKind.KEPT_BYTES: (
        "{best:size} kept from forward to backward at best",
        "{kept:size}, and {reference:size} without checkpointing",
    ),
    FaultKind.RECOMPUTED_BYTES: (
        "what a recompute made to be freed before the next: {first:size} alive as the first begins",
        "{most:size} later",
    ),
    FaultKind.LEFT_BYTES: ("{reference:size} alive after the backward", "{found:size}"),
    FaultKind.BACKWARD_FLOPS: ("a backward that runs the blocks' forward once more", "{ratio:.2f} times that work"),
    FaultKind.LOOP_DIFFERS: ("{underlying.expected} {loop:words}", "{underlying.seen}"),
    FaultKind.GROWING_BYTES: (
        "{reference:size} more alive after a step than after the one before",
        "{found:size} more",
    ),
    FaultKind.SAVING_LOST: (
        "as much memory saved in the third step as in the first",
        "{found:size} kept from its forward to its backward, and {reference:size} without checkpointing",
    ),
    FaultKind.PRECISION_DIFFERS: ("{underlying.expected} {precision:words}", "{underlying.seen}"),
    FaultKind.AUTOCAST_NOT_RESTORED: ("the autocast of the forward in the recompute", "another, or none"),
    FaultKind.RANK_MISSING: ("every rank to take part", "{error}"),
    FaultKind.RANK_STEP_RAISED: ("a step that ends", "on {ranks}: {error}"),
    FaultKind.RANKS_DISAGREE: (
        "level {underlying.level} to hold on every rank",
        "a fault on {ranks}: {underlying:clause}",
    ),
    FaultKind.PARAMETERS_DIFFER: ("the same parameters on every rank", "others on {ranks}"),
    FaultKind.WEIGHTS_DIFFER: (
        "the same weights on every rank",
        "other values on {ranks} than on rank 0 ({count} of {total} parameters)",
    ),
    FaultKind.GRADIENTS_DIFFER: (
        "the same gradients on every rank",
        f"other values on {{ranks}} than on rank 0 {_GRADIENTS}",
    ),
    FaultKind.GRADIENTS_MISSING: ("the same gradients on every rank", f"none on {{ranks}} {_GRADIENTS}"),
    FaultKind.MEAN_LOST: (_MEAN, f"none or only zeros on {{ranks}} {_GRADIENTS}"),
    FaultKind.MEAN_GAINED: (_MEAN, f"one that no rank computes on {{ranks}} {_GRADIENTS}"),
    FaultKind.MEAN_VALUE: (_MEAN, f"a relative error up to {{error:.2g}} on {{ranks}} {_GRADIENTS}"),
}

WORDS: Mapping[str, str] = {
    LoopKind.STEPS: "over three steps of an optimizer",
    LoopKind.ACCUMULATION: "where gradients are accumulated over two backwards",
    LoopKind.TWO_FORWARDS: "where two forwards come before a backward",
    LoopKind.RETAINED_GRAPH: "where a graph is retained for a second backward",
    LoopKind.ADAPTERS: "where adapters train on a frozen model",
    Precision.BFLOAT16: "in bfloat16",
    Precision.FLOAT16: "in float16",
    Precision.AUTOCAST: "under autocast to bfloat16",
}

SKIPS: Mapping[SkipKind, str] = {
    SkipKind.ALWAYS_NON_REENTRANT: "wrap_blocks checkpoints non-reentrant in either mode",
    SkipKind.NO_SUCH_MODE: "{error}",
    SkipKind.OTHER_MODE: "its blocks are checkpointed in the other mode, whichever is asked for",
    SkipKind.IRREPRODUCIBLE: (
        "two equal runs without checkpointing differ ({error}): the model keeps something from run to run, or draws "
        "from a generator that is not torch's, and nothing can be compared"
    ),
    SkipKind.OWN_CHECKPOINT: (
        "the model checkpoints by itself {own}, also where it is switched off: nothing can be compared with that"
    ),
    SkipKind.NOTHING_CHECKPOINTED: (
        "no stack of blocks was found, and the step keeps no less with checkpointing on: nothing was checkpointed"
    ),
    SkipKind.NO_BLOCKS: "no stack of blocks was found",
    SkipKind.NO_BLOCK_REACHED: (
        "the backward of this step comes through none of its blocks: nothing was checkpointed"
    ),
    SkipKind.GRADIENTS_LOST: "the backward was cut off",
    SkipKind.GRADIENT_IN_FORWARD: (
        "the forward takes gradients through its blocks, which recomputes them there and keeps what that makes: "
        "{kept:size} kept from forward to backward, {reference:size} without checkpointing"
    ),
    SkipKind.SELECTIVE_POLICY: (
        "the model checkpoints with a selective policy of its own, which keeps what it names: "
        "{kept:size} kept from forward to backward, {reference:size} without checkpointing"
    ),
    SkipKind.OWN_PARTS: (
        "the model checkpoints parts of its blocks, or makes what they need again in functions of its own: "
        "{kept:size} kept from forward to backward, {reference:size} without checkpointing"
    ),
    SkipKind.OWN_PACKING: (
        "hooks of the model's own pack what its forward saves, as offloading does, and nothing is recomputed: "
        "{kept:size} kept from forward to backward, {reference:size} without checkpointing"
    ),
    SkipKind.ONE_BACKWARD: "torch lets one backward go through a graph that a selective policy has made",
    SkipKind.STEP_WRONG: "a single step is already wrong",
    SkipKind.NO_CACHE: "no cache could be made to see what becomes of one in {argument} ({error})",
    SkipKind.NO_CACHE_ARGUMENT: (
        "what becomes of its cache is not known: it takes {arguments}, and no argument that a Cache is for"
    ),
    SkipKind.CACHE_NOT_TAKEN: (
        "the model does not run with a cache in {argument} without checkpointing either ({error})"
    ),
    SkipKind.CACHE_REFUSED: "a cache in {argument} is refused: {error}",
    SkipKind.SAME_SAMPLES: (
        "two forwards before a backward would be given the same: give samples that differ, as many in each input"
    ),
    SkipKind.NO_LINEAR_LAYER: "no block has a linear layer for an adapter",
    SkipKind.LOOP_NOT_RUN: "the model does not train without checkpointing either {loop:words} ({error})",
    SkipKind.LOOP_REFUSED: "it is refused to train {loop:words}: {error}",
    SkipKind.NOT_WIDE: "the model is in {dtypes}: give it in float32 or float64",
    SkipKind.PRECISION_NOT_RUN: "the model does not train without checkpointing either {precision:words} ({error})",
    SkipKind.PRECISION_REFUSED: "it is refused to train {precision:words}: {error}",
    SkipKind.ONE_PROCESS: "there is one process: start it with torchrun to compare ranks",
    SkipKind.NOT_WRAPPED: "{model} is not wrapped in DistributedDataParallel",
    SkipKind.OTHER_GROUP: "the process group of {model} is not that of all ranks",
    SkipKind.MIXED_PRECISION: "{model} has a mixed precision of its own",
}

CAUSES: Mapping[CauseKind, str] = {
    CauseKind.PLAIN_BLOCK: "{block} is not a GradientCheckpointingLayer, so nothing checkpoints it.",
    CauseKind.OUTDATED_SWITCH: (
        "{model} switches checkpointing on by a method of its own, of the form before transformers 4.35, which "
        "reaches no layer."
    ),
    CauseKind.NESTED_BLOCKS: "{block} lies inside {outer}, and both are checkpointed.",
    CauseKind.POSITIONAL_PAST_STATE: "{block} gets its past state `{argument}` by position.",
    CauseKind.KEYWORD_GRADIENT: (
        "`{argument}` reaches {block} by keyword, where reentrant checkpointing sees no gradient."
    ),
    CauseKind.RETURNED_KEYWORD: (
        "{block} takes `{argument}` by keyword and returns it: its own output becomes part of what made it."
    ),
    CauseKind.SHARED_WRITES: "{block} writes into `{argument}`, which is shared between blocks.",
    CauseKind.GRADIENT_CONTAINER: (
        "`{argument}` brings {block} tensors with gradient inside a container, where they are not seen."
    ),
    CauseKind.NESTED_OUTPUT: (
        "{block} returns tensors with gradient inside an inner container, where they are not seen."
    ),
    CauseKind.UNREACHABLE: "",
    CauseKind.OTHER_ARGUMENT: (
        "With checkpointing on, the model gives {block} another `{argument}` than without, or none."
    ),
    CauseKind.NEVER_CHECKPOINTED: "Nothing checkpoints {block}.",
    CauseKind.EVALUATION_MODE: "{module} is in evaluation mode, in which nothing is checkpointed.",
    CauseKind.FORWARD_REPLACED: "The forward of {module} was replaced, and checkpointing with it.",
    CauseKind.UNRETURNED_TENSOR: (
        "A tensor made inside {block} is used outside without being returned, such as router logits."
    ),
    CauseKind.NO_INPUT_GRADIENT: "No input of {block} needs gradient, so that reentrant checkpointing cuts it off.",
    CauseKind.CACHE_WRITTEN_AGAIN: "The recompute writes into the cache again.",
    CauseKind.BATCH_NORM_TWICE: "The recompute updates the running statistics of batch normalisation a second time.",
    CauseKind.RNG_NOT_RESTORED: ("The generator's state is not restored for the recompute, so that dropout changes."),
    CauseKind.CACHE_SWITCHED_OFF: (
        "It computes otherwise without its cache, which checkpointing switches off: give use_cache=False to compare."
    ),
    CauseKind.COUNTED_AGAIN: "A recompute changes `{attribute}`, which its forward had changed already.",
    CauseKind.OWN_GENERATOR: (
        "`{attribute}` is a generator of the model's own: a recompute draws other numbers from it than its forward."
    ),
    CauseKind.OWN_STATE: (
        "The model draws from a generator of its own or keeps something from run to run: nothing can be compared."
    ),
    CauseKind.UNEQUAL_COLLECTIVES: "The other ranks' steps end: they do not add up the same gradients.",
    CauseKind.UNUSED_PARAMETERS: (
        "Reentrant checkpointing hides blocks from find_unused_parameters, which takes them for unused."
    ),
    CauseKind.SHARED_PARAMETER: (
        "In reentrant mode each block that uses a parameter reports its gradient, so that none may be shared."
    ),
    CauseKind.OWN_FUNCTION: (
        "No block is recomputed: what is made again is made by {functions}, an autograd.Function of the model's own."
    ),
    CauseKind.OWN_PACKING: (
        "Hooks of the model's own pack what its forward saves, and bring back something else: a tensor that is reused "
        "or overwritten too early, or another."
    ),
    CauseKind.OTHER_AUTOCAST: "{module} is recomputed under another {what} than its forward.",
    CauseKind.OTHER_HOOKS: "{module} has other hooks in its recompute than in its forward.",
    CauseKind.OTHER_ATTRIBUTE: "`{attribute}` of {module} has another value in the recompute than in the forward.",
    CauseKind.IN_THEIR_PLACE: (
        "Another block is recomputed in their place: the checkpointed function looks its block up each time it runs."
    ),
    CauseKind.WRITTEN_ARGUMENT: (
        "{block} writes into its argument `{argument}` in place: others see the values, and not where they come from."
    ),
    CauseKind.WRONG_WITHOUT_WRAPPER: "Gradients are wrong without the wrapper too.",
}

RULES: Mapping[CauseKind, str] = {
    CauseKind.PLAIN_BLOCK: "CKPT001",
    CauseKind.OUTDATED_SWITCH: "CKPT011",
    CauseKind.NESTED_BLOCKS: "CKPT006",
    CauseKind.POSITIONAL_PAST_STATE: "CKPT004",
    CauseKind.KEYWORD_GRADIENT: "CKPT003",
    CauseKind.RETURNED_KEYWORD: "CKPT003",
    CauseKind.SHARED_WRITES: "CKPT007",
    CauseKind.GRADIENT_CONTAINER: "CKPT007",
    CauseKind.NESTED_OUTPUT: "CKPT010",
    CauseKind.UNREACHABLE: "CKPT009",
    CauseKind.OTHER_ARGUMENT: "CKPT002",
    CauseKind.IN_THEIR_PLACE: "CKPT012",
}
"""The codes of the rules that find causes in source. They are copied here since measuring needs no rules."""


def fault_text(kind: FaultKind, details: Mapping[str, Any]) -> FaultText:
    """Return the clauses of a fault. Raises KeyError if a template needs a detail that is missing."""
    names = dict(details)
    if "ranks" in names:
        names["ranks"] = ranks_in_words(names["ranks"], names["world_size"])
    return FaultText(*(_Formatter().vformat(clause, (), names) for clause in FAULTS[kind]))


def skip_text(kind: SkipKind, details: Mapping[str, Any]) -> str:
    """Say in a clause why a level was skipped. Raises KeyError if a template needs a detail that is missing."""
    return _Formatter().vformat(SKIPS[kind], (), details)


def cause_text(kind: CauseKind, names: Mapping[str, str], *, general: bool = False) -> str:
    """Return the sentence for a cause; empty if its rule says it all. Raises KeyError if a name is missing.

    A `general` sentence does not name the classes of this model's blocks.
    """
    hidden = dict.fromkeys(names.keys() & {"block", "outer"}, "a block") if general else {}
    return CAUSES[kind].format_map({**names, **hidden})


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "size":
            return size(value)
        if format_spec == "words":
            return WORDS[value]
        if format_spec == "clause":
            return str(value).removesuffix(".")
        return str(super().format_field(value, format_spec))
