"""What a checkpointed step costs, counted: no more bytes and FLOPs than with transformers' and torch's own ways."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from ckpt_surgery import wrap_blocks
from ckpt_surgery.measure.compare import compare
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from ckpt_surgery.tiny import tiny_model

pytestmark = [pytest.mark.torch, pytest.mark.both]

NONE, OURS, LIBRARY, REENTRANT, WRAPPER = "none", "wrap_blocks", "transformers", "reentrant", "checkpoint_wrapper"
FAMILIES: Mapping[str, Mapping[str, int]] = {
    "LlamaForCausalLM": {"num_hidden_layers": 6},
    "GPTBigCodeForCausalLM": {"num_hidden_layers": 4},
    "MixtralForCausalLM": {"num_hidden_layers": 4},
    "T5ForConditionalGeneration": {},
    "SwinModel": {},
    "SwiftFormerModel": {},
    "ZambaForCausalLM": {},
    "Zamba2ForCausalLM": {},
}


def record(model: Any, inputs: Any, way: str) -> RunRecord:
    """Run a step of a copy that is checkpointed in this way."""
    own = copy.deepcopy(model)
    if way == OURS:
        wrap_blocks(own, self_check="never")
    else:
        switch_checkpointing(own, {LIBRARY: "non_reentrant", REENTRANT: "reentrant"}.get(way))  # type: ignore[arg-type]
    if way == WRAPPER:
        outermost = [block.module for block in find_blocks(own) if not block.inside]
        apply_activation_checkpointing(own, check_fn=lambda module: module in outermost)

    def plain(name: str) -> str:
        return name.replace("._checkpoint_wrapped_module", "")

    names = {module: plain(name) for name, module in own.named_modules()}
    blocks = {names[block.module]: block.module for block in find_blocks(own)}
    mode: Any = {LIBRARY: "non_reentrant", OURS: "non_reentrant", REENTRANT: "reentrant"}.get(way)
    ran = run_step(own, inputs, blocks=blocks, checkpointing=mode, switch=lambda *_: None)
    gradients = {plain(name): each for name, each in ran.gradients.items()}
    return replace(ran, gradients=gradients, buffers={plain(name): each for name, each in ran.buffers.items()})


@pytest.mark.parametrize("name", FAMILIES)
def test_no_other_way_that_is_right_keeps_fewer_bytes_or_works_less(name: str) -> None:
    tiny = tiny_model(getattr(transformers, name), options={"use_cache": False, **FAMILIES[name]})
    model = tiny.model.train()
    none, ours, *others = (record(model, tiny.inputs, way) for way in (NONE, OURS, LIBRARY, REENTRANT, WRAPPER))
    assert compare(none, ours).faults == ()
    assert ours.memory.kept < none.memory.kept
    assert none.flops.backward < ours.flops.backward <= none.flops.backward + none.flops.forward
    right = [other for other in others if other.error is None and not compare(none, other).faults]
    assert ours.memory.kept <= min((other.memory.kept for other in right), default=ours.memory.kept)
    assert ours.flops.backward <= min((other.flops.backward for other in right), default=ours.flops.backward)
    if name == "LlamaForCausalLM":
        assert len(right) == len(others), "so that the marks are set"
    if any(block.inside for block in find_blocks(model)) and others[0] not in right:
        assert ours.flops.backward < others[0].flops.backward, "nested blocks are recomputed once"
