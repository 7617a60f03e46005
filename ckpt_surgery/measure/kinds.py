"""What can be wrong and why, as enums: decisions are made on these. The words for them are in `wording`."""

from __future__ import annotations

from enum import StrEnum


class FaultKind(StrEnum):
    """What checkpointing can do wrong. The comment above each group names its level."""

    # run
    NOT_SWITCHED_ON = "not_switched_on"
    IRREPRODUCIBLE = "irreproducible"
    REFERENCE_RAISED = "reference_raised"
    STEP_RAISED = "step_raised"
    STEP_UNFINISHED = "step_unfinished"
    BACKWARD_UNFINISHED = "backward_unfinished"
    SURGERY_UNFINISHED = "surgery_unfinished"
    REBUILD_UNFINISHED = "rebuild_unfinished"
    # recompute
    NO_BLOCKS = "no_blocks"
    NOT_RECOMPUTED = "not_recomputed"
    RECOMPUTE_COUNT = "recompute_count"
    FORWARD_COUNT = "forward_count"
    RECOMPUTED_IN_REFERENCE = "recomputed_in_reference"
    # set
    GRADIENT_LOST = "gradient_lost"
    GRADIENT_GAINED = "gradient_gained"
    # values
    LOSS_VALUE = "loss_value"
    GRADIENT_VALUE = "gradient_value"
    # state
    BUFFER_CHANGED = "buffer_changed"
    CACHE_WRITTEN = "cache_written"
    RNG_NOT_RESTORED = "rng_not_restored"
    RNG_MOVED = "rng_moved"
    # cost
    KEPT_BYTES = "kept_bytes"
    BACKWARD_FLOPS = "backward_flops"
    # ranks
    RANK_MISSING = "rank_missing"
    RANK_STEP_RAISED = "rank_step_raised"
    RANKS_DISAGREE = "ranks_disagree"
    PARAMETERS_DIFFER = "parameters_differ"
    WEIGHTS_DIFFER = "weights_differ"
    GRADIENTS_DIFFER = "gradients_differ"
    GRADIENTS_MISSING = "gradients_missing"
    MEAN_LOST = "mean_lost"
    MEAN_GAINED = "mean_gained"
    MEAN_VALUE = "mean_value"


class CauseKind(StrEnum):
    """Why a fault is there, where no rule explains it; what a rule explains is an `Observation`."""

    UNREACHABLE = "unreachable"
    NEVER_CHECKPOINTED = "never_checkpointed"
    EVALUATION_MODE = "evaluation_mode"
    FORWARD_REPLACED = "forward_replaced"
    UNRETURNED_TENSOR = "unreturned_tensor"
    NO_INPUT_GRADIENT = "no_input_gradient"
    CACHE_WRITTEN_AGAIN = "cache_written_again"
    BATCH_NORM_TWICE = "batch_norm_twice"
    RNG_NOT_RESTORED = "rng_not_restored"
    CACHE_SWITCHED_OFF = "cache_switched_off"
    OWN_STATE = "own_state"
    UNEQUAL_COLLECTIVES = "unequal_collectives"
    UNUSED_PARAMETERS = "unused_parameters"
    SHARED_PARAMETER = "shared_parameter"
    WRONG_WITHOUT_WRAPPER = "wrong_without_wrapper"
