"""The kinds of faults, skips and causes, as enums that code decides by. `wording` puts them into words."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

Level = Literal["run", "recompute", "set", "values", "state", "cost", "loop", "precision", "ranks"]


class FaultKind(StrEnum):
    """The ways in which checkpointing goes wrong, each with the level at which it shows."""

    level: Level

    def __new__(cls, value: str, level: Level = "run") -> Self:  # the default is for mypy, which sees FaultKind(value)
        kind = str.__new__(cls, value)
        kind._value_, kind.level = value, level
        return kind

    NOT_SWITCHED_ON = "not_switched_on", "run"
    IRREPRODUCIBLE = "irreproducible", "run"  # runs without checkpointing differ, by the surgery or on another rank
    REFERENCE_RAISED = "reference_raised", "run"
    STEP_RAISED = "step_raised", "run"
    STEP_UNFINISHED = "step_unfinished", "run"  # it runs out of time or ends its process, as the next three
    BACKWARD_UNFINISHED = "backward_unfinished", "run"
    SURGERY_UNFINISHED = "surgery_unfinished", "run"
    REBUILD_UNFINISHED = "rebuild_unfinished", "run"
    NO_BLOCKS = "no_blocks", "recompute"  # in a model that claims support
    NOTHING_CHECKPOINTED = "nothing_checkpointed", "recompute"
    NOT_RECOMPUTED = "not_recomputed", "recompute"
    SWITCHED_OFF = "switched_off", "recompute"
    PART_NOT_RECOMPUTED = "part_not_recomputed", "recompute"
    RECOMPUTE_COUNT = "recompute_count", "recompute"
    FORWARD_COUNT = "forward_count", "recompute"  # the forward with checkpointing enters blocks more or less often
    GRADIENT_LOST = "gradient_lost", "set"
    GRADIENT_GAINED = "gradient_gained", "set"
    LOST_IN_REFERENCE = "lost_in_reference", "set"  # by checkpoints that stay with checkpointing off
    LOSS_VALUE = "loss_value", "values"
    OUTPUT_VALUE = "output_value", "values"
    GRADIENT_VALUE = "gradient_value", "values"
    BUFFER_CHANGED = "buffer_changed", "state"
    BUFFER_LATE = "buffer_late", "state"  # wrong after the forward, right after the backward
    CACHE_WRITTEN = "cache_written", "state"  # a recompute makes a cache among the inputs longer
    WRITTEN_AGAIN = "written_again", "state"  # a recompute writes to another input, an attribute or a global
    CACHE_STEP_RAISED = "cache_step_raised", "state"
    RNG_NOT_RESTORED = "rng_not_restored", "state"
    RNG_MOVED = "rng_moved", "state"
    KEPT_BYTES = "kept_bytes", "cost"  # from forward to backward
    RECOMPUTED_BYTES = "recomputed_bytes", "loop"  # made by a recompute, and alive when the next begins
    LEFT_BYTES = "left_bytes", "loop"  # alive after the backward
    BACKWARD_FLOPS = "backward_flops", "cost"
    LOOP_DIFFERS = "loop_differs", "loop"
    GROWING_BYTES = "growing_bytes", "loop"
    SAVING_LOST = "saving_lost", "loop"
    PRECISION_DIFFERS = "precision_differs", "precision"
    AUTOCAST_NOT_RESTORED = "autocast_not_restored", "precision"
    RANK_MISSING = "rank_missing", "ranks"
    RANK_STEP_RAISED = "rank_step_raised", "ranks"
    RANKS_DISAGREE = "ranks_disagree", "ranks"
    PARAMETERS_DIFFER = "parameters_differ", "ranks"
    WEIGHTS_DIFFER = "weights_differ", "ranks"
    GRADIENTS_DIFFER = "gradients_differ", "ranks"
    GRADIENTS_MISSING = "gradients_missing", "ranks"
    MEAN_LOST = "mean_lost", "ranks"  # of gradients over ranks, as the next two
    MEAN_GAINED = "mean_gained", "ranks"
    MEAN_VALUE = "mean_value", "ranks"


class LoopKind(StrEnum):
    """A training loop beyond one step."""

    STEPS = "steps"
    ACCUMULATION = "accumulation"
    TWO_FORWARDS = "two_forwards"
    RETAINED_GRAPH = "retained_graph"
    ADAPTERS = "adapters"


class Precision(StrEnum):
    """The precision of a step beside its model's dtype."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    AUTOCAST = "autocast"


class SkipKind(StrEnum):
    """The reasons why a level was not judged although it was asked for and no step failed."""

    # of a whole mode
    ALWAYS_NON_REENTRANT = "always_non_reentrant"
    NO_SUCH_MODE = "no_such_mode"
    OTHER_MODE = "other_mode"
    IRREPRODUCIBLE = "irreproducible"  # equal runs without checkpointing differ
    OWN_CHECKPOINT = "own_checkpoint"
    NOTHING_CHECKPOINTED = "nothing_checkpointed"
    NO_BLOCK_REACHED = "no_block_reached"  # by the backward
    # of the levels "recompute" and "cost"
    NO_BLOCKS = "no_blocks"
    GRADIENTS_LOST = "gradients_lost"
    GRADIENT_IN_FORWARD = "gradient_in_forward"
    SELECTIVE_POLICY = "selective_policy"
    OWN_PARTS = "own_parts"  # the model checkpoints parts of blocks
    OWN_PACKING = "own_packing"  # hooks of the model pack what is saved, and nothing is recomputed
    # of the levels "loop", "state" (caches) and "precision"
    ONE_BACKWARD = "one_backward"  # torch lets none go twice through a selective policy
    STEP_WRONG = "step_wrong"  # without a loop already
    NO_CACHE = "no_cache"
    NO_CACHE_ARGUMENT = "no_cache_argument"
    CACHE_NOT_TAKEN = "cache_not_taken"
    CACHE_REFUSED = "cache_refused"
    SAME_SAMPLES = "same_samples"  # two forwards would get equal inputs
    NO_LINEAR_LAYER = "no_linear_layer"
    LOOP_NOT_RUN = "loop_not_run"
    LOOP_REFUSED = "loop_refused"
    NOT_WIDE = "not_wide"  # the model is in half precision itself
    PRECISION_NOT_RUN = "precision_not_run"
    PRECISION_REFUSED = "precision_refused"
    # of the level "ranks"
    ONE_PROCESS = "one_process"
    NOT_WRAPPED = "not_wrapped"
    OTHER_GROUP = "other_group"  # the wrapper has some of the ranks only
    MIXED_PRECISION = "mixed_precision"


PARTIAL_SKIPS = frozenset(
    {
        SkipKind.ONE_BACKWARD,
        SkipKind.SAME_SAMPLES,
        SkipKind.NO_LINEAR_LAYER,
        SkipKind.LOOP_NOT_RUN,
        SkipKind.LOOP_REFUSED,
        SkipKind.PRECISION_NOT_RUN,
        SkipKind.PRECISION_REFUSED,
    }
)
"""The reasons to skip only a part of a level; the rest of it was judged, unless all parts were skipped."""


class CauseKind(StrEnum):
    """The causes of faults."""

    # found in source by a static rule, too
    PLAIN_BLOCK = "plain_block"
    OUTDATED_SWITCH = "outdated_switch"
    NESTED_BLOCKS = "nested_blocks"
    POSITIONAL_PAST_STATE = "positional_past_state"
    KEYWORD_GRADIENT = "keyword_gradient"
    RETURNED_KEYWORD = "returned_keyword"
    SHARED_WRITES = "shared_writes"
    GRADIENT_CONTAINER = "gradient_container"
    NESTED_OUTPUT = "nested_output"
    UNREACHABLE = "unreachable"  # no block has the flag by which checkpointing is switched on
    OTHER_ARGUMENT = "other_argument"  # than without checkpointing
    IN_THEIR_PLACE = "in_their_place"  # another block is recomputed instead

    # seen in a run only
    NEVER_CHECKPOINTED = "never_checkpointed"
    EVALUATION_MODE = "evaluation_mode"
    FORWARD_REPLACED = "forward_replaced"
    UNRETURNED_TENSOR = "unreturned_tensor"
    NO_INPUT_GRADIENT = "no_input_gradient"
    CACHE_WRITTEN_AGAIN = "cache_written_again"
    BATCH_NORM_TWICE = "batch_norm_twice"
    RNG_NOT_RESTORED = "rng_not_restored"
    CACHE_SWITCHED_OFF = "cache_switched_off"
    COUNTED_AGAIN = "counted_again"  # a recompute changes a number that is an attribute
    OWN_GENERATOR = "own_generator"
    OWN_STATE = "own_state"  # the model keeps something from run to run
    UNEQUAL_COLLECTIVES = "unequal_collectives"
    UNUSED_PARAMETERS = "unused_parameters"
    SHARED_PARAMETER = "shared_parameter"
    OWN_FUNCTION = "own_function"  # an autograd.Function of the model recomputes
    OWN_PACKING = "own_packing"  # hooks of the model bring back another tensor than was saved
    OTHER_AUTOCAST = "other_autocast"  # in the recompute than in the forward, as the next two
    OTHER_HOOKS = "other_hooks"
    OTHER_ATTRIBUTE = "other_attribute"
    WRITTEN_ARGUMENT = "written_argument"
    WRONG_WITHOUT_WRAPPER = "wrong_without_wrapper"
