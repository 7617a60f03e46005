"""`ddp_ready` on a model's structure and batches; it leaves the model alone.

`test_matrix` shows on real ranks that its answer is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import peft
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PretrainedConfig, PreTrainedModel

from ckpt_surgery.distributed.needs import DDPOption, DDPReady, Need, NeedReason
from ckpt_surgery.distributed.ready import ddp_ready
from ckpt_surgery.errors import DistributedError
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.tiny import model_classes, tiny_config, tiny_inputs
from tests.conftest import installed_major
from tests.distributed.matrix_script import lora, qwen, tied
from tests.zoo.ddp_models import Run, released
from tests.zoo.ready_toys import BackwardInside, KeepsItsWeight, SharedToy
from tests.zoo.tiny_models import llama, tokens

pytestmark = pytest.mark.both

FIVE = installed_major("transformers") == 5
SEARCHED = {"find_unused_parameters": True}


def configured(name: str, **values: Any) -> Any:
    """Build a tiny model whose configuration has these values."""
    kind = model_classes()[name]
    config: Any = tiny_config(kind.config_class())
    for key, value in values.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    return kind.load()(config).train()


def about(ready: DDPReady, option: str, reason: NeedReason | None = None) -> Need:
    """Return the only need of an option, for that reason if one is given."""
    (need,) = [need for need in ready.needs if need.option.value == option and reason in (None, need.reason)]
    return need


def options_named(ready: DDPReady) -> list[str]:
    return [need.option.value for need in ready.needs]


def without_gradient(model: nn.Module, batch: dict[str, Any]) -> set[str]:
    """List the trainable parameters that a plain step leaves without gradient."""
    model.zero_grad()
    loss_of(model(**batch)).backward()  # type: ignore[no-untyped-call]
    return {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}


def test_a_plain_model_needs_nothing() -> None:
    run = released("LlamaForCausalLM")
    for ready in (ddp_ready(run.model), ddp_ready(run.model, *run.steps[0])):
        assert ready.needs == ()
        assert ready.options == {}
        assert (ready.find_unused_parameters, ready.use_reentrant, ready.static_graph) == (False, False, False)


NEEDS_NOTHING: dict[str, Callable[[], Any]] = {
    "tied embeddings, outside of blocks": lambda: tied().model,
    "shared parameters, frozen": lambda: SharedToy(in_blocks=2, in_head=False).requires_grad_(False),
    "a tower, frozen": lambda: qwen(["text"], frozen=True).model,
    "adapters in a frozen base": lambda: lora(inputs=False).model,
    "a loss of two inputs": lambda: configured("BlipModel"),
    "images always": lambda: configured("Blip2ForConditionalGeneration"),
    "no text": lambda: configured("VisionEncoderDecoderModel"),
    "LayerDrop of rate 0": lambda: configured("Wav2Vec2ForCTC", layerdrop=0.0),
    "no word on which the embeddings are": lambda: Reticent(),
    "LayerDrop of frozen blocks": lambda: frozen_in("Wav2Vec2ForCTC", "wav2vec2.encoder.layers", layerdrop=0.1),
}


def frozen_in(name: str, part: str, **values: Any) -> Any:
    model = configured(name, **values)
    model.get_submodule(part).requires_grad_(False)
    return model


class Reticent(PreTrainedModel):  # type: ignore[misc]
    """A model whose `get_input_embeddings` raises NotImplementedError."""

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())
        self.layer = nn.Linear(2, 2)

    def forward(self, input_ids: Tensor | None = None) -> None:
        """Not run."""


@pytest.mark.parametrize("case", NEEDS_NOTHING)
def test_without_an_optional_or_a_shared_part_there_are_no_needs(case: str) -> None:
    assert ddp_ready(NEEDS_NOTHING[case]()).needs == ()


def test_a_shared_block_rules_out_reentrant_checkpointing() -> None:
    ready = ddp_ready(released("ZambaForCausalLM").model)
    (need,) = ready.needs
    assert need.option is DDPOption.NON_REENTRANT
    assert need.names
    assert all("shared_transf" in name for name in need.names)
    assert ready.options == {}


@pytest.mark.parametrize(
    ("in_blocks", "in_head", "shared"), [(2, False, True), (1, True, True), (1, False, False), (0, True, False)]
)
def test_sharing_matters_where_a_block_is_among_the_places(in_blocks: int, in_head: bool, shared: bool) -> None:
    model = SharedToy(in_blocks=in_blocks, in_head=in_head)
    for ready in (ddp_ready(model), ddp_ready(model, {"values": torch.randn(2, 4)})):
        assert options_named(ready) == ["use_reentrant=False"] * shared
        assert [need.names for need in ready.needs] == [("layers.0.linear.weight", "layers.0.linear.bias")] * shared


def test_a_tower_may_be_unused_and_a_static_graph_does_not_help() -> None:
    ready = ddp_ready(qwen(["text"]).model)
    need = about(ready, "find_unused_parameters=True")
    assert need.names == ("model.visual",)
    assert need.reason is NeedReason.OPTIONAL_INPUT
    assert " may " in need.why
    assert "step 0" in about(ready, "static_graph=False").why
    assert "never go together" in about(ready, "use_reentrant=False").why
    assert ready.options == SEARCHED
    assert not ready.measured


def test_the_projector_of_a_frozen_tower_may_be_unused() -> None:
    model = released("LlavaForConditionalGeneration").model
    both = about(ddp_ready(model), "find_unused_parameters=True").names
    assert [name.rpartition(".")[2] for name in both] == ["multi_modal_projector", "vision_tower"]
    model.get_submodule(both[1]).requires_grad_(False)
    assert about(ddp_ready(model), "find_unused_parameters=True").names == both[:1]


def test_a_head_beside_text_and_tower_is_no_projector() -> None:
    model = configured("Gemma3ForSequenceClassification")
    assert hasattr(model, "score")
    names = about(ddp_ready(model), "find_unused_parameters=True").names
    assert names == ("model.multi_modal_projector", "model.vision_tower")


def test_adapters_in_a_tower_are_named_by_themselves() -> None:
    run = qwen(["image"], ["text"])
    config = peft.LoraConfig(r=2, target_modules=["qkv", "q_proj"], init_lora_weights=False)
    model: Any = peft.get_peft_model(run.model, config).train()
    by_structure = about(ddp_ready(model), "find_unused_parameters=True").names
    assert by_structure == ("base_model.model.model.visual",)
    seen = about(ddp_ready(model, run.steps[0][0], run.steps[1][0]), "find_unused_parameters=True").names
    assert seen
    assert all(name.startswith(by_structure[0]) and "lora_" in name for name in seen)


def test_blocks_that_layerdrop_leaves_out_get_no_gradient_and_are_named() -> None:
    model = configured("BartForConditionalGeneration", encoder_layerdrop=1.0)
    names = about(ddp_ready(model), "find_unused_parameters=True").names
    assert names == ("model.encoder.layers.0", "model.encoder.layers.1")
    unused = without_gradient(model, tiny_inputs(model))
    assert {name for name, _ in model.named_parameters() if name.startswith(names)} <= unused


@pytest.mark.parametrize(
    ("name", "rate", "lists"),
    [
        ("FSMTForConditionalGeneration", "encoder_layerdrop", ["model.encoder.layers"]),
        ("FlaubertModel", "layerdrop", ["attentions", "layer_norm1", "ffns", "layer_norm2"]),
    ],
)
def test_where_no_block_is_found_the_lists_with_layerdrop_are_named(name: str, rate: str, lists: list[str]) -> None:
    assert ddp_ready(configured(name, **{rate: 0.0})).needs == ()
    model = configured(name, **{rate: 1.0})
    for ready in (ddp_ready(model), ddp_ready(model, tiny_inputs(model))):
        assert about(ready, "find_unused_parameters=True", NeedReason.LAYER_DROP).names == tuple(lists)
    unused = without_gradient(model, tiny_inputs(model))
    assert all(any(parameter.startswith(name) for parameter in unused) for name in lists)


@pytest.mark.parametrize(
    ("name", "tower"), [("GitModel", "image_encoder"), ("ChameleonForConditionalGeneration", "model.vqmodel")]
)
def test_a_model_of_other_inputs_inside_one_of_token_ids_may_be_unused(name: str, tower: str) -> None:
    model = configured(name)
    assert about(ddp_ready(model), "find_unused_parameters=True").names == (tower,)
    inputs = tiny_inputs(model)
    text = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    inside = {parameter for parameter, _ in model.named_parameters() if parameter.startswith(tower)}
    assert inside <= without_gradient(model, text)
    model.get_submodule(tower).requires_grad_(False)
    assert ddp_ready(model).needs == ()


@pytest.mark.parametrize("name", ["BartForCausalLM", "SpeechT5ForTextToSpeech", "PerceiverForMaskedLM"])
def test_a_wrapper_of_the_text_model_is_no_tower(name: str) -> None:
    assert not any(need.reason is NeedReason.OPTIONAL_INPUT for need in ddp_ready(configured(name)).needs)


def test_experts_in_lists_are_named_if_some_may_get_no_gradient() -> None:
    model = released("MixtralForCausalLM").model
    token = {"input_ids": torch.tensor([[5, 5]]), "labels": torch.tensor([[5, 5]])}
    unused = without_gradient(model, token)
    ready = ddp_ready(model, token)
    if FIVE:  # the experts of a layer are one parameter
        assert unused == set()
        assert ready.needs == ()
    else:
        need = about(ready, "find_unused_parameters=True")
        assert all(name.endswith("experts") for name in need.names)
        assert unused
        assert all(name.startswith(need.names) for name in unused)


def test_batches_show_which_parameters_they_leave_out() -> None:
    run = qwen(["image"], ["text"])
    image, text = run.steps[0][0], run.steps[1][0]
    ready = ddp_ready(run.model, image, text)
    need = about(ready, "find_unused_parameters=True", NeedReason.USED_AT_TIMES)
    assert set(need.names) == without_gradient(run.model, text) != set()
    assert "step 0" in about(ready, "static_graph=False").why
    assert ready.options == SEARCHED
    assert ready.measured
    alone = ddp_ready(run.model, text)
    assert about(alone, "find_unused_parameters=True", NeedReason.NEVER_USED).names == need.names
    assert "static_graph=False" not in options_named(alone)
    assert ddp_ready(run.model, image).needs == ()


def test_batches_show_blocks_that_run_twice_in_a_step() -> None:
    run = qwen(["video"])
    (need,) = ddp_ready(run.model, run.steps[0][0]).needs
    assert need.option is DDPOption.NON_REENTRANT
    assert {name for name, _ in run.model.named_parameters() if ".visual.blocks." in name} == set(need.names)


@pytest.mark.parametrize("way", ["reversible", "reentrant"])
@pytest.mark.parametrize("wanting", [True, False])
def test_a_backward_inside_the_backward_gives_gradients_too(
    way: Literal["reversible", "reentrant"], wanting: bool
) -> None:
    # Where nothing before it wants a gradient it never runs, and no parameter in it gets one.
    model, batch = BackwardInside(way), {"values": torch.randn(2, 4, requires_grad=wanting)}
    need = about(ddp_ready(model, batch), "find_unused_parameters=True", NeedReason.NEVER_USED)
    assert set(need.names) == without_gradient(model, batch)
    assert ("first.weight" in need.names) == (not wanting)
    assert "spare.weight" in need.names
    inside = [need.names for need in ddp_ready(model, batch).needs if need.reason is NeedReason.INNER_BACKWARD]
    assert inside == [("first.bias", "first.weight")] * wanting
    model.spare.requires_grad_(False)
    assert not wanting or ddp_ready(model, batch).needs == ()


@pytest.mark.usefixtures("one_rank")
def test_a_search_marks_parameters_of_a_backward_inside_twice() -> None:
    batch = {"values": torch.randn(2, 4, requires_grad=True)}
    model = BackwardInside("reversible")
    ddp = DistributedDataParallel(model, **ddp_ready(model, batch).options)
    with pytest.raises(RuntimeError, match="mark a variable ready only once"):
        ddp(**batch).sum().backward()
    model = BackwardInside("reversible")
    model.spare.requires_grad_(False)
    ddp = DistributedDataParallel(model, **ddp_ready(model, batch).options)
    for _ in range(2):
        ddp(**batch).sum().backward()


def test_a_parameter_that_is_used_from_elsewhere_is_used() -> None:
    (need, *_) = ddp_ready(KeepsItsWeight(), {"values": torch.ones(4)}).needs
    assert need.names == ("spare",)


@pytest.mark.parametrize("mode", [None, "non_reentrant", "reentrant"])
def test_a_model_that_checkpoints_reentrant_now_learns_what_to_call(mode: Mode | None) -> None:
    run = qwen(["image"], ["text"])
    switch_checkpointing(run.model, mode)
    for ready in (ddp_ready(run.model), ddp_ready(run.model, run.steps[0][0], run.steps[1][0])):
        needs = [need for need in ready.needs if need.reason is NeedReason.REENTRANT_NOW]
        assert len(needs) == (mode == "reentrant")
        assert all("model.visual.blocks.0" in need.names for need in needs)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mode", ["reentrant", "non_reentrant"])
def test_the_model_comes_back_as_it_was(mode: Mode, fails: bool) -> None:
    model = llama(hidden_act="gelu", attention_dropout=0.5).eval()
    switch_checkpointing(model, mode)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    stepped: list[Tensor] = []
    next(model.parameters()).register_post_accumulate_grad_hook(stepped.append)
    next(model.parameters()).register_hook(stepped.append)
    parameters = list(model.parameters())
    before = [(dict(vars(module)), module.training) for module in model.modules()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    if fails:
        with pytest.raises(DistributedError, match="batch 1 fails"):
            ddp_ready(model, tokens(), {"input_ids": "words"})
    else:
        assert ddp_ready(model, tokens()).needs == ()
    assert [(dict(vars(module)), module.training) for module in model.modules()] == before
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert all(p.grad is not None and bool((p.grad == 1).all()) for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert stepped == []
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))


def made_in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("model", "batches", "said"),
    [
        ({}, (), "the model is of type dict: give a torch.nn.Module"),
        (nn.DataParallel(nn.Linear(2, 2)), (), "give model.module instead"),
        (nn.Linear(2, 2), ({"input": torch.ones(2)}, [1]), "batch 1 is of type list: give a dict"),
        (nn.Linear(2, 2), ({"input": torch.ones(2)}, {"words": 1}), "batch 1 fails .* TypeError: .*words"),
        (nn.Linear(2, 2).requires_grad_(False), ({"input": torch.ones(2)},), "batch 0 fails .* OptionError"),
        (made_in_inference_mode(), ({"input": torch.ones(2)},), "made in inference mode"),
    ],
    ids=["no module", "DataParallel", "no dict", "wrong input", "nothing to train", "made in inference mode"],
)
def test_what_cannot_be_looked_at_is_refused_in_a_sentence(model: Any, batches: Any, said: str) -> None:
    with pytest.raises(DistributedError, match=said) as caught:
        ddp_ready(model, *batches)
    assert "\n" not in str(caught.value)


def test_printed_it_says_where_it_knows_from_and_shortens_long_lists() -> None:
    run: Run = qwen(["image"], ["text"])
    by_structure = str(ddp_ready(run.model))
    assert by_structure.startswith("Qwen2VLForConditionalGeneration: DistributedDataParallel with find_unused")
    assert "by its structure. Nothing was run" in by_structure.splitlines()[0]
    seen = str(ddp_ready(run.model, run.steps[0][0], run.steps[1][0]))
    assert "by the batches that were run" in seen.splitlines()[0]
    assert "more" in seen
    assert str(ddp_ready(llama())) == (
        "LlamaForCausalLM: DistributedDataParallel with no options, by its structure, in which no optional part is "
        "known. Nothing was run: a batch of each kind makes sure"
    )
    assert "makes sure" not in str(ddp_ready(llama(), tokens()))
