"""`long_context` on real models: the same step, less memory, fully undone."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

import benchmarks.long_context as benchmark
from ckpt_surgery import SurgeryError, SurgeryWarning, long_context, wrap_blocks
from ckpt_surgery.long_sequences.fused_head import HeadReason
from ckpt_surgery.long_sequences.mlps import MlpReason
from ckpt_surgery.measure.meter import Meter
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.surgery import checkpointing
from tests.runtime.transports import Recorded

pytestmark = [pytest.mark.torch, pytest.mark.both]

VOCABULARY = 61


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(**{"vocab_size": VOCABULARY, "num_hidden_layers": 2, **sizes, **options})
    return LlamaForCausalLM(config).train()


def batch(length: int = 12, **more: Any) -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(length))
    labels = ids.clone()
    labels[0, :3] = -100
    return {"input_ids": ids, "labels": labels, **more}


def step(model: Any, **inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same(ours: tuple[Tensor, dict[str, Tensor]], theirs: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6, equal_nan=True)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        torch.testing.assert_close(ours[1][name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "LlamaForCausalLM",
        "Gemma2ForCausalLM",
        "CohereForCausalLM",
        "GPT2LMHeadModel",
        "T5ForConditionalGeneration",
        "BartForConditionalGeneration",
        "BertLMHeadModel",
        "MixtralForCausalLM",
    ],
)
def test_loss_and_gradients_in_float64_are_those_of_the_models_own_code(name: str) -> None:
    row = benchmark.row_of({"case": name, **benchmark.examine(name)})
    assert not benchmark.differs(row)
    assert (row["problem"], row["way"]) == (None, benchmark.Way.FUSED)


BATCHES: dict[str, dict[str, Any]] = {
    "labels": batch(),
    "another length": batch(7),
    "items of an accumulated batch": batch(num_items_in_batch=torch.tensor(50)),
    "items as a number": batch(num_items_in_batch=50),
    "all labels ignored": {**batch(), "labels": torch.full((2, 12), -100)},
    "shifted labels": batch(shift_labels=batch()["labels"].roll(-1, 1)),
    "another ignored label": {**batch(ignore_index=5), "labels": batch()["labels"].clamp(min=5)},
    "the last tokens": {**batch(), "logits_to_keep": 4, "labels": batch()["labels"][:, -4:]},
    "padding-free": {
        **{name: value.reshape(1, -1) for name, value in batch().items()},
        "position_ids": torch.arange(12).repeat(2)[None],
        "use_cache": False,  # with a cache, as without checkpointing, transformers does not look for packed sequences
    },
    "a tuple": batch(return_dict=True),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_kind_of_batch_gives_the_same_step(name: str) -> None:
    model = llama()
    own = step(model, **BATCHES[name])
    with long_context(model, tokens=48) as context:
        assert_same(step(model, **BATCHES[name]), own)
        assert (context.fused_losses, context.made_logits) == (1, {})


def test_the_most_bytes_alive_are_less() -> None:
    model = llama(vocab_size=2000, hidden_size=32, intermediate_size=256, num_hidden_layers=4)
    inputs = batch(256)
    own = most_alive(model, inputs)
    with long_context(model):
        assert most_alive(model, inputs) < own / 4


def most_alive(model: nn.Module, inputs: dict[str, Any]) -> int:
    model.zero_grad()
    with Meter() as meter:
        loss = model(**inputs).loss
        meter.start_backward(loss)
        loss.backward()
        peak: int = max(held for _, held in meter.timeline().points)
    return peak


LENGTH = 64
MASK_BYTES = 2 * LENGTH * LENGTH
"""The bytes of a boolean mask for two sequences."""


@pytest.mark.parametrize("shared", [True, False], ids=["as transformers does", "a mask for each layer"])
def test_masks_and_rotary_tables_are_kept_once_for_all_layers(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Recorded()
    monkeypatch.setattr(checkpointing, "_offloader", lambda options: Offloader(transport, minimum_bytes=0))
    held = []
    for layers in (4, 8):
        model = llama(num_hidden_layers=layers)
        for layer in [] if shared else model.model.layers:
            layer.register_forward_pre_hook(with_a_mask_of_its_own, with_kwargs=True)
        mask = torch.ones(2, LENGTH, dtype=torch.long)
        mask[0, :3] = 0
        with long_context(model), Meter() as meter:
            loss = model(**batch(LENGTH), attention_mask=mask).loss
            meter.start_backward(loss)
        held.append(meter.kept_bytes)
    more = held[1] - held[0]
    assert (more == 0) if shared else (more == 4 * MASK_BYTES)


def with_a_mask_of_its_own(layer: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return args, {**kwargs, "attention_mask": kwargs["attention_mask"].clone()}


def test_a_step_after_one_that_raised_is_as_it_should_be() -> None:
    model = llama()
    with long_context(model) as context:
        with pytest.raises(ValueError, match="batch_size"):
            model(input_ids=batch()["input_ids"], labels=torch.zeros(2, 5, dtype=torch.long))
        assert type(model(batch()["input_ids"]).logits) is Tensor
        step(model, **batch())
        assert not context.loss.state.running


def test_generation_between_steps_is_as_before() -> None:
    model = llama()
    ids = batch(4)["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    written = model.eval().generate(ids, **options)
    own = step(model.train(), **batch())
    with long_context(model):
        assert_same(step(model, **batch()), own)
        assert torch.equal(model.eval().generate(ids, **options), written)
        assert_same(step(model.train(), **batch()), own)


def test_undo_leaves_nothing() -> None:
    model = llama()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    keys = list(model.state_dict())
    context = long_context(model)
    assert list(model.state_dict()) == keys
    context.undo()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    with pytest.raises(SurgeryError, match="undone before"):
        context.undo()


@pytest.mark.parametrize("steps", [0, 12], ids=["checked", "not checked"])
@pytest.mark.parametrize("what", ["undo", "other shards", "undo and again"])
def test_a_change_before_the_backward_is_refused(what: str, steps: int) -> None:
    # The recompute of a block would run another MLP than the first pass did; the next step is right.
    model = llama()
    own = step(model, **batch())
    context = long_context(model, tokens=96, cut=False)
    for _ in range(steps):
        step(model, **batch())
    model.zero_grad()
    loss = model(**batch()).loss
    if what == "other shards":
        long_context(model, tokens=40, cut=False)
    else:
        context.undo()
    if what == "undo and again":
        long_context(model, cut=False)
    with pytest.raises((SurgeryError, CheckpointError), match=r"a different result|[Rr]ecomp"):
        loss.backward()
    assert_same(step(model, **batch()), own)


def test_a_second_call_changes_the_shards_and_nothing_else() -> None:
    model = llama()
    own = step(model, **batch())
    context = long_context(model)
    assert long_context(model, tokens=64) is context
    assert [vars(layer.mlp)["forward"].num_shards for layer in model.model.layers] == [4, 4]
    assert_same(step(model, **batch()), own)
    assert context.fused_losses == 1
    context.undo()
    assert "forward" not in vars(model.lm_head)


def test_a_surgery_that_was_there_before_gets_its_options_back() -> None:
    model = llama()
    surgery = wrap_blocks(model, every_n=2)
    options = surgery.options
    with long_context(model) as context:
        assert context.surgery is surgery
        assert surgery.options.offload == "cpu"
    assert surgery.options == options
    surgery.undo()


def test_a_surgery_that_was_undone_by_itself_is_done_again() -> None:
    model = llama()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    context = long_context(model)
    wrap_blocks(model).undo()
    assert long_context(model) is context
    assert context.surgery.checkpointing is not None
    wrap_blocks(model).undo()
    context.undo()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_a_copy_trains_and_is_undone_by_itself(duplicate: Any) -> None:
    model = llama()
    own = step(model, **batch())
    before = [set(vars(module)) for module in model.modules()]
    context = long_context(model)
    other = duplicate(model)
    context.undo()
    assert_same(step(other, **batch()), own)
    of_copy = long_context(other)
    assert (of_copy.fused_losses, context.fused_losses) == (1, 0)
    of_copy.undo()
    assert [set(vars(module)) for module in other.modules()] == before


def test_a_hook_on_the_head_sees_logits() -> None:
    model = llama()
    seen: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.detach().sum()))
    own = step(model, **batch())
    with long_context(model), pytest.warns(SurgeryWarning, match="detach"):
        assert_same(step(model, **batch()), own)
    torch.testing.assert_close(seen[0], seen[1])


@pytest.mark.parametrize("target", ["q_proj", "down_proj", "lm_head"])
@pytest.mark.parametrize("dora", [False, True], ids=["LoRA", "DoRA"])
def test_adapters(target: str, dora: bool) -> None:
    peft = pytest.importorskip("peft")
    config = partial(peft.LoraConfig, use_dora=dora)

    def adapted() -> Any:
        torch.manual_seed(1)
        model = llama()
        return peft.get_peft_model(model, config(target_modules=[target], init_lora_weights=False)).train()

    model = adapted()
    own = step(model, **batch())
    with long_context(model, tokens=96) as context:
        assert_same(step(model, **batch()), own)
        reasons = [head.reason for head in context.heads]
        assert reasons == ([HeadReason.ADAPTED] if target == "lm_head" else [None])
        assert context.fused_losses == (target != "lm_head")
        ran = target != "lm_head"  # else no block has anything to train
        assert [(each.calls > 0, each.reason) for each in context.cuts.values()] == [(ran, None)] * 2
        assert ("not fused: its head has an adapter" in str(context)) is (target == "lm_head")


def test_what_is_left_alone_is_named() -> None:
    from transformers import BertConfig, BertModel, MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    with long_context(BertModel(BertConfig(vocab_size=9, **sizes))) as context:
        assert [head.reason for head in context.heads] == [HeadReason.NO_HEAD]
    config = MixtralConfig(vocab_size=9, num_key_value_heads=1, num_local_experts=2, **sizes)
    with long_context(MixtralForCausalLM(config)) as context:
        assert [mlp.reason for mlp in context.mlps] == [MlpReason.MIXES]


@pytest.mark.parametrize("tokens", [0, -1, 2.5, True, "many"])
def test_tokens_are_a_number(tokens: Any) -> None:
    model = llama()
    with pytest.raises(SurgeryError, match="tokens is"):
        long_context(model, tokens=tokens)
    assert "forward" not in vars(model.model.layers[0])


def test_what_cannot_be_wrapped_is_left_alone() -> None:
    with pytest.raises(SurgeryError, match=r"give a torch\.nn\.Module"):
        long_context("model")  # type: ignore[arg-type]
    head = nn.Linear(2, 2)
    with pytest.raises(SurgeryError):
        long_context(head)
    assert set(vars(head)) == set(vars(nn.Linear(2, 2)))


@pytest.mark.parametrize("options", [{"cut": False}, {"tokens": 96}], ids=["tiled", "cut"])
def test_autocast_is_that_of_the_forward_also_in_the_backward(options: dict[str, Any]) -> None:
    model = llama()

    def run(*, autocast: bool) -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(**batch(24)).loss
        loss.backward()  # as torch asks for, outside of it
        return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
        return max(float((one[name] - gradient).norm() / gradient.norm()) for name, gradient in other.items())

    loss, gradients = run(autocast=True)
    _, without = run(autocast=False)
    with long_context(model, **options) as context:
        our_loss, ours = run(autocast=True)
        assert context.fused_losses == 1
        assert all(each.calls for each in context.cuts.values())
    assert our_loss.dtype == loss.dtype
    torch.testing.assert_close(our_loss, loss, rtol=1e-2, atol=1e-2)
    assert apart(ours, gradients) < 0.6 * apart(without, gradients)


def test_a_head_that_peft_trains_a_copy_of_is_fused() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = peft.get_peft_model(llama(), config).train()
    own = step(model, **batch())
    with long_context(model) as context:
        assert_same(step(model, **batch()), own)
        assert context.fused_losses == 1
    assert any("lm_head" in name for name in own[1])
