"""The rules, in order. `codemods` decides on `ast` and edits with libcst; it imports no torch."""

from __future__ import annotations

from ckpt_surgery.codemods.rule import Rule
from ckpt_surgery.codemods.rules import (
    conditional_collective,
    ddp_bypass,
    gradient_container,
    inline_checkpoint,
    keyword_gradient,
    nested_checkpoint,
    nested_output,
    plain_block,
    positional_past_state,
    reentrant_under_ddp,
    signature_order,
    split_device_map,
    unfiltered_past_state,
    unreachable_checkpointing,
)

RULES: tuple[Rule, ...] = (
    Rule.of("CKPT001", plain_block),
    Rule.of("CKPT002", inline_checkpoint),
    Rule.of("CKPT003", keyword_gradient),
    Rule.of("CKPT004", positional_past_state),
    Rule.of("CKPT005", signature_order),
    Rule.of("CKPT006", nested_checkpoint),
    Rule.of("CKPT007", gradient_container),
    Rule.of("CKPT008", unfiltered_past_state),
    Rule.of("CKPT009", unreachable_checkpointing),
    Rule.of("CKPT010", nested_output),
    Rule.of("CKPT101", ddp_bypass),
    Rule.of("CKPT102", conditional_collective),
    Rule.of("CKPT103", split_device_map),
    Rule.of("CKPT104", reentrant_under_ddp),
)

_BY_CODE = {rule.code: rule for rule in RULES}


def rule(code: str) -> Rule:
    """The rule of a code such as `CKPT003`.

    Raises:
        KeyError: there is no such rule.
    """
    return _BY_CODE[code]
