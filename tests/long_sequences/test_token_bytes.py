"""The bytes of cut blocks on device and host: predicted, chosen and reported."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from benchmarks.long_context_cards import Recipe, explained, on_shapes, whole_peaks
from ckpt_surgery import SurgeryError, long_context
from ckpt_surgery.long_sequences import cut_block
from ckpt_surgery.long_sequences.device_room import DeviceRoom
from ckpt_surgery.long_sequences.long_context import LongContext
from ckpt_surgery.long_sequences.parked import ParkedTiles
from ckpt_surgery.measure.meter import Meter
from ckpt_surgery.runtime.offload.host_memory import HostMemory
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.surgery import checkpointing
from ckpt_surgery.text import size
from tests.long_sequences.test_cut import LENGTH, TOKENS
from tests.long_sequences.test_long_context import assert_same, batch, llama, step
from tests.runtime.transports import Recorded

pytestmark = [pytest.mark.torch, pytest.mark.both]

INPUT = 2 * LENGTH * 16 * 4
"""Bytes of the input of a block of the tiny Llama."""
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "vocab_size": 64}
MODELS: dict[str, dict[str, Any]] = {
    "shared keys": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2},
    "wide heads": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
}


def ways(context: LongContext) -> set[bool]:
    """Tell for the last calls of blocks whether their tiles were on the host."""
    return {each.parked for each in context.cuts.values()}


@pytest.mark.skipif(
    transformers.__version__ < "5", reason="transformers 4 gives such models a mask of tokens x tokens"
)
@pytest.mark.parametrize(("name", "host"), [("shared keys", False), ("wide heads", True)])
def test_a_token_takes_in_the_backward_of_attention_what_explain_says(name: str, host: bool) -> None:
    recipe = Recipe(name, {**SIZES, "num_attention_heads": 8, **MODELS[name]})
    peaks = [whole_peaks(recipe, thousands, host=host)[1] for thousands in (2, 4)]
    model = on_shapes(recipe, 2, 1)
    context = long_context(model.model, host=host)
    explained(model, host=host)
    (needed,) = {each.token.on_device(parks=host) for each in context.cuts.values() if each.token}
    assert needed == pytest.approx((peaks[1] - peaks[0]) / 2 / 1024, rel=0.01)


@pytest.mark.parametrize(("free", "parked"), [(None, False), (10**9, False), (10**4, True)])
def test_what_does_not_fit_on_the_device_waits_on_the_host(
    free: int | None, parked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_block, "free_bytes", lambda device: free)
    model = llama()
    own = step(model, **batch(LENGTH))
    with long_context(model, TOKENS) as context:
        assert_same(step(model, **batch(LENGTH)), own)
        assert ways(context) == {parked}
    with long_context(model, TOKENS, host=not parked) as context:
        step(model, **batch(LENGTH))
        assert ways(context) == {not parked}, "what is said counts"


def test_what_a_token_takes_is_known_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(cut_block.BlockCut, "_has_to_park", lambda cut, values: seen.append(cut.token))
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :5] = 0
    model = llama()
    with long_context(model, TOKENS) as context:
        step(model, **batch(LENGTH, attention_mask=mask))
        assert seen == [each.token for each in context.cuts.values()]
        assert seen[0].beside >= LENGTH, "a mask of booleans, and rotary tables"


def test_room_for_gradients_that_are_to_come_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    with long_context(model, TOKENS) as context:
        step(model, **batch(LENGTH))
        (token,) = {each.token for each in context.cuts.values()}
        assert token is not None
        activations = token.on_device(parks=False) * 2 * LENGTH
        monkeypatch.setattr(cut_block, "free_bytes", lambda device: activations)
        loss = model(**batch(LENGTH)).loss
        assert ways(context) == {False}, "the gradients of the step before are there"
        loss.backward()
        model.zero_grad(set_to_none=True)
        step(model, **batch(LENGTH))
        assert ways(context) == {True}


@pytest.mark.parametrize("host", [False, True], ids=["here", "on the host"])
def test_what_may_stay_stays(host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Recorded()
    monkeypatch.setattr(checkpointing, "_offloader", lambda options: Offloader(transport, minimum_bytes=0))
    model = llama(num_hidden_layers=4)
    own = step(model, **batch(LENGTH))

    def kept(keep: int) -> list[int]:
        held = []
        with long_context(model, TOKENS, host=host, keep=keep) as context:
            for _ in range(2):
                model.zero_grad()
                with Meter() as meter:
                    loss = model(**batch(LENGTH)).loss
                    meter.start_backward(loss)
                    loss.backward()  # the loss lives on into the next forward
                held.append(meter.kept_bytes)
            assert_same((loss.detach(), {name: p.grad for name, p in model.named_parameters()}), own)
            assert all(each.calls == 2 and each.reason is None for each in context.cuts.values())
        return held

    assert kept(2 * INPUT + 1) == [held + 2 * INPUT for held in kept(0)]


def test_room_is_given_back_and_a_copy_has_its_own() -> None:
    room = DeviceRoom(10)
    taken = room.take(7)
    assert taken is not None
    assert room.take(4) is None
    assert copy.deepcopy(room).take(10) is not None
    del taken
    assert room.take(10) is not None


def test_tiles_on_the_host_go_with_the_backward_and_not_with_the_loss() -> None:
    model = llama()
    with long_context(model, TOKENS, host=True):
        loss = model(**batch(LENGTH)).loss
        loss.backward(retain_graph=True)
        assert parked() == 2
        loss.backward()
        assert parked() == 0
        twice = {name: p.grad / 2 for name, p in model.named_parameters()}
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert_same((loss.detach(), twice), step(model, **batch(LENGTH)))


def parked() -> int:
    """Count a forward's tensors on the host."""
    return sum(type(each) is ParkedTiles for each in gc.get_objects())


def test_inputs_may_wait_on_a_disk(tmp_path: Path) -> None:
    model = llama()
    own = step(model, **batch(LENGTH))
    with long_context(model, TOKENS, offload=str(tmp_path)) as context:
        assert_same(step(model, **batch(LENGTH)), own)
        assert context.surgery.options.offload == str(tmp_path)
        assert "on the disk for 2 inputs of blocks" in str(context)
        assert long_context(model, TOKENS) is context
        assert context.surgery.options.offload == "cpu"
    with pytest.raises(SurgeryError, match="leave offload='disk' out"):
        long_context(model, host=True, offload="disk")


@pytest.mark.parametrize("keep", [-1, "much", 1.5, True])
def test_what_may_stay_is_a_size(keep: Any) -> None:
    model = llama()
    with pytest.raises(SurgeryError, match="keep is"):
        long_context(model, keep=keep)
    assert "forward" not in vars(model.model.layers[0])


def test_what_a_token_takes_is_reported_once_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMemory, "now", lambda: HostMemory(10**6, 10**9))
    model = llama()
    with long_context(model, TOKENS, keep="20GB") as context:
        assert "a token: what it takes is known after the first step" in str(context)
        step(model, **batch(LENGTH))
        (token,) = {each.token for each in context.cuts.values()}
        assert token is not None
        takes = token.on_device(parks=False)
        held = sum(p.nbytes for p in model.parameters()) * 4 + sum(b.nbytes for b in model.buffers())
        fits = int((0.92 * 80e9 - 20e9 - held) / takes)
        said = str(context).splitlines()
        assert f"a token: {takes / 64:.1f} hidden states ({size(takes)}) on the device, 128 B on the host" in said[-3]
        assert f"about {fits // 1000 * 1000:,} tokens on a card of 80 GB (assumed" in said[-2]
        assert said[-1] == "the host has 977 KiB free: 7,000 tokens"
    model.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    with long_context(model, TOKENS) as context:
        step(model, **batch(LENGTH))
        assert "not known, as not all blocks are cut" in str(context)
