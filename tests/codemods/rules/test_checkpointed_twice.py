"""The measurements on the page of CKPT106: the cost of FSDP's checkpointing around that of transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

pytestmark = [pytest.mark.both, pytest.mark.torch]


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=4, **sizes)).train()


def step(model: LlamaForCausalLM) -> tuple[int, int, list[Tensor]]:
    """Count the first block's runs in a step and the bytes that the forward keeps; return both with the gradients."""
    runs = []
    block = model.model.layers[0]
    block.get_submodule("input_layernorm").register_forward_pre_hook(lambda *_: runs.append(1))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(16).reshape(1, 16)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return len(runs), sum(kept.values()), gradients


@pytest.mark.parametrize(("reentrant", "runs"), [(True, 3), (False, 2)])
def test_checkpointing_twice_keeps_no_byte_less_and_may_cost_a_third_run(reentrant: bool, runs: int) -> None:
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    twice = copy.deepcopy(model)
    for index, layer in enumerate(twice.model.layers):
        twice.model.layers[index] = checkpoint_wrapper(layer, preserve_rng_state=False)  # as accelerate does
    once_runs, once_kept, once_gradients = step(model)
    twice_runs, twice_kept, twice_gradients = step(twice)
    assert (once_runs, twice_runs) == (2, runs)
    assert twice_kept == once_kept
    for once, again in zip(once_gradients, twice_gradients, strict=True):
        torch.testing.assert_close(again, once)


@pytest.mark.parametrize("both", [True, False])
def test_a_trainer_stops_where_both_are_among_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    class Sharded(Accelerator):  # type: ignore[misc]
        """An accelerator as FSDP's plugin leaves it, without the devices that FSDP needs."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            plugin = SimpleNamespace(activation_checkpointing=True, limit_all_gathers=False)
            monkeypatch.setitem(self.state.__dict__, "fsdp_plugin", plugin)

    monkeypatch.setattr("transformers.trainer.Accelerator", Sharded)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], gradient_checkpointing=both)
    if both:
        with pytest.raises(ValueError, match=r"can't (both )?be set to True"):
            Trainer(llama(), arguments)
    else:
        Trainer(llama(), arguments)
