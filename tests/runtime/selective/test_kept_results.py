"""`wrap_blocks(save=...)`: kept results are not recomputed, take the predicted bytes, and leave gradients equal."""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ckpt_surgery import SurgeryError, verify, wrap_blocks
from ckpt_surgery.measure.compare import compare
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.selective.kept_results import KeptResults, _GivingMode
from ckpt_surgery.runtime.surgery import checkpointing
from tests.measure.toys import model_of
from tests.runtime.transports import Recorded
from tests.zoo.surgery_toys import NormedLayer, differences, step
from tests.zoo.tiny_models import LENGTH, WORDS, layers_of, llama, t5, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

ROWS, HEADS, SIZE, ITEM = 2, 2, 16, 8
WIDTH = {"hidden_size": SIZE, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": HEADS}
Save = str | list[str] | None


def ran_in(run: Callable[[], Any]) -> Counter[str]:
    """Count the runs of each operator, also in compiled code whatever the release of torch."""
    with torch.autograd.profiler.profile() as seen:
        run()
    return Counter(event.name for event in seen.function_events or ())


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types there
    """A counter of the operators that run inside, also by operators of higher order."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran.update(str(each._schema.name) for each in (func, *args) if isinstance(each, torch._ops.OpOverload))
        return func(*args, **(kwargs or {}))


def counts(model: nn.Module, inputs: Mapping[str, Any] | None = None) -> tuple[Counter[str], Counter[str]]:
    """Count the runs of each operator in a forward and in its backward."""
    with Counting() as forward:
        loss = model(**(tokens() if inputs is None else inputs)).loss
    with Counting() as backward:
        loss.backward()
    return forward.ran, backward.ran


def equal(model: nn.Module, plain: nn.Module, inputs: Mapping[str, Any] | None = None) -> bool:
    """Compare two models' gradients bit for bit in each of three steps."""
    results = []
    for each in (model, plain):
        results.append([step(each, inputs or tokens(), seed=seed, blocks={}).gradients for seed in range(3)])
    return all(
        (ours[name] is None and theirs[name] is None) or torch.equal(ours[name], theirs[name])
        for ours, theirs in zip(*results, strict=True)
        for name in theirs
    )


def without(model: nn.Module) -> nn.Module:
    """Return the model with its blocks checkpointed and without a policy."""
    wrap_blocks(model)
    return model


# What is kept

KERNEL = "aten::_scaled_dot_product_flash_attention_for_cpu"
ATTENTION_BYTES = ROWS * LENGTH * SIZE * ITEM + ROWS * HEADS * LENGTH * ITEM
"""The output of one attention and its sums of exponentials, in float64."""
EAGER_BYTES = ROWS * LENGTH * SIZE * ITEM
MATMUL_BYTES = ROWS * LENGTH * (SIZE + 2 * SIZE // 2 + SIZE + 24 + 24 + SIZE) * ITEM
"""Queries, keys and values of one head, the output, gate, up and down."""
SECOND_BYTES = ROWS * LENGTH * (SIZE + SIZE // 2 + 24 + SIZE) * ITEM
"""Queries, values, gate and down."""


def test_attention_runs_once_and_not_twice() -> None:
    model = llama(2)
    wrap_blocks(model)
    forward, backward = counts(model)
    assert (forward[KERNEL], backward[KERNEL]) == (2, 2)
    wrap_blocks(model, save="attention")
    forward, backward = counts(model)
    assert (forward[KERNEL], backward[KERNEL]) == (2, 0)


@pytest.mark.parametrize(
    ("save", "attention", "expected"),
    [
        ("attention", "sdpa", ATTENTION_BYTES),
        ("attention", "eager", EAGER_BYTES),
        ("matmul", "sdpa", MATMUL_BYTES),
        ("matmul:2", "sdpa", SECOND_BYTES),
        (["attention", "matmul"], "sdpa", ATTENTION_BYTES + MATMUL_BYTES),
        (["matmul", "aten.mm"], "sdpa", MATMUL_BYTES),
    ],
    ids=str,
)
def test_the_bytes_added_are_those_predicted(save: Save, attention: str, expected: int) -> None:
    model = llama(2, attn_implementation=attention)
    surgery = wrap_blocks(model)
    before = run_step(model, tokens(), blocks=layers_of_named(model), checkpointing="non_reentrant")
    surgery = wrap_blocks(model, save=save)
    after = run_step(model, tokens(), blocks=layers_of_named(model), checkpointing="non_reentrant")
    assert surgery.policies[0].bytes == {"model.layers.0": expected, "model.layers.1": expected}
    assert after.memory.kept - before.memory.kept == 2 * expected
    assert after.memory.kept_by_policy == surgery.policies[0].bytes


POST_NORM_BYTES = ROWS * LENGTH * (SIZE + 2 * 2) * ITEM
"""The first norm of a block of BERT, and the means and deviations of both; the block returns the second."""


@pytest.mark.parametrize("options", [{}, {"offload": "cpu"}], ids=["on the device", "with inputs on the host"])
def test_what_a_block_returns_is_no_memory_that_a_policy_adds(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "_offloader", lambda _: Offloader(Recorded(), minimum_bytes=0))
    kept = []
    for save in (None, "norm"):
        model = bert()
        surgery = wrap_blocks(model, save=save, self_check="never", **options)
        blocks = {block.name: block.module for stack in surgery.stacks for block in stack.blocks}
        kept.append(run_step(model, tokens(), blocks=blocks, checkpointing="non_reentrant").memory.kept)
    assert kept[1] - kept[0] == 2 * POST_NORM_BYTES
    assert surgery.policies[0].bytes == dict.fromkeys(blocks, POST_NORM_BYTES)
    assert [summary.bytes for summary in surgery.summary().kept] == [2 * POST_NORM_BYTES]


def layers_of_named(model: nn.Module) -> dict[str, nn.Module]:
    return {f"model.layers.{name}": block for name, block in layers_of(model).items()}


def test_the_table_says_what_was_kept() -> None:
    model = llama(2)
    surgery = wrap_blocks(model, save=["attention", "matmul:2"], every_n=2)
    assert str(surgery).splitlines()[-2:] == [
        "save attention: what it keeps is known after a step",
        "save matmul:2: what it keeps is known after a step",
    ]
    model(**tokens()).loss.backward()
    assert str(surgery).splitlines()[-2:] == [
        "save attention: 1 result in the last step, 1.7 KiB, 4.6 kFLOP not done again, of "
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "save matmul:2: 4 results in the last step, 6.0 KiB, 27.6 kFLOP not done again, of aten.mm",
    ]


ATTENTION_FLOPS = 2 * 2 * ROWS * LENGTH * LENGTH * SIZE
"""Two products of each query with each key, or value."""


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_work_that_is_spared_is_counted(attention: str) -> None:
    runs = []
    for save in (None, "attention"):
        model = llama(2, attn_implementation=attention)
        surgery = wrap_blocks(model, save=save, self_check="never")
        runs.append(run_step(model, tokens(), blocks=layers_of_named(model), checkpointing="non_reentrant"))
    spared = ATTENTION_FLOPS if attention == "sdpa" else ATTENTION_FLOPS // 2  # eager: the weighted sum
    assert surgery.policies[0].flops == 2 * spared
    assert runs[0].flops.backward - runs[1].flops.backward == runs[1].flops.spared == 2 * spared


# Gradients


def made(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)
    model = kind(config)
    return (model if kind is transformers.MixtralForCausalLM else model.double()).train()


def gpt2(**options: Any) -> Any:
    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=SIZE, n_layer=2, n_head=HEADS, **options)
    return made(transformers.GPT2LMHeadModel, config)


def bert(**options: Any) -> Any:
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=16, **WIDTH, **options)
    return made(transformers.BertForMaskedLM, config)


def mixtral(**options: Any) -> Any:
    config = transformers.MixtralConfig(
        vocab_size=WORDS,
        num_key_value_heads=1,
        num_local_experts=4,
        output_router_logits=True,
        attention_dropout=0.1,
        **WIDTH,
        **options,
    )
    return made(transformers.MixtralForCausalLM, config)


def vit(**options: Any) -> Any:
    config = transformers.ViTConfig(image_size=8, patch_size=4, hidden_dropout_prob=0.1, **WIDTH, **options)
    return made(transformers.ViTForImageClassification, config)


def image() -> dict[str, Tensor]:
    pixels = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return {"pixel_values": pixels, "labels": torch.tensor([0, 1])}


def dropping_llama(**options: Any) -> Any:
    return llama(2, attention_dropout=0.1, **options)


FAMILIES: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "llama": (dropping_llama, {"attention", "matmul", "random"}),
    "gpt2": (gpt2, {"attention", "matmul", "random", "norm"}),
    "bert": (bert, {"attention", "matmul", "random", "norm"}),
    "mixtral": (mixtral, {"attention", "matmul", "random", "router"}),
    "t5": (lambda **_: t5(), {"attention", "matmul", "random"}),
    "vit": (vit, {"attention", "matmul", "random", "norm"}),
}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_without_a_policy_bit_for_bit(family: str, attention: str) -> None:
    make, names = FAMILIES[family]
    inputs = image() if family == "vit" else tokens()
    wrap_blocks(plain := make(attn_implementation=attention))
    for save in ([*sorted(names)], ["matmul:3", "random:2"]):
        model = make(attn_implementation=attention)
        surgery = wrap_blocks(model, save=save)
        assert equal(model, plain, inputs), save
        assert surgery.policies[0].unmatched == ()


class Adapter(nn.Module):
    """A frozen linear layer whose result takes in that of two small ones beside it, in place."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False).double()
        self.up = nn.Linear(2, base.out_features, bias=False).double()

    def forward(self, hidden_states: Tensor) -> Tensor:
        result: Tensor = self.base(hidden_states)
        result += self.up(self.down(hidden_states))
        return result


def adapted() -> Any:
    model = llama(2).requires_grad_(False)
    torch.manual_seed(1)
    for block in layers_of(model).values():
        mlp: Any = block.mlp
        mlp.up_proj = Adapter(mlp.up_proj)
    return model


def test_adapters_of_peft_on_a_frozen_base() -> None:
    peft = pytest.importorskip("peft")

    def with_adapters() -> Any:
        torch.manual_seed(1)
        config = peft.LoraConfig(target_modules=["q_proj", "up_proj"], lora_dropout=0.5, init_lora_weights=False)
        return peft.get_peft_model(llama(2), config).double().train()

    model, plain = with_adapters(), with_adapters()
    wrap_blocks(model, save=["attention", "matmul"])
    assert equal(model, plain)


def test_adapters_that_add_in_place_are_refused() -> None:
    model = adapted()
    wrap_blocks(model, save="matmul")
    message = (
        r"save keeps what aten.mm makes in LlamaDecoderLayer model.layers.0, and aten.add_ writes that in place "
        r"afterwards: have it make a tensor of its own"
    )
    with pytest.raises(SurgeryError, match=message):
        model(**tokens())
    wrap_blocks(model, save="attention")
    assert equal(model, adapted())


class Leaking(nn.Module):
    """A layer that returns a tensor it goes on using, so that the caller may write it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        result = self.linear(hidden_states)
        return result, result.exp()


class Writing(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Leaking(), Leaking()])
        for layer in self.layers:
            layer.linear = nn.Linear(4, 4, bias=bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        for layer in self.layers:
            result, hidden_states = layer(hidden_states)
            with torch.no_grad():
                result += 1
        return hidden_states.sum()


@pytest.mark.parametrize("bias", [True, False], ids=["a view", "memory with a count of its own"])
def test_what_the_caller_writes_is_refused(bias: bool) -> None:
    model = Writing(bias=bias).train()
    wrap_blocks(model, save="matmul", self_check="never")
    with pytest.raises(SurgeryError, match=r"and something writes that in place afterwards"):
        model(torch.randn(2, 3, 4)).backward()


@pytest.mark.parametrize("self_check", ["always", "first", 5])
def test_running_statistics_are_written_once(self_check: Any) -> None:
    model, plain = (model_of(NormedLayer, NormedLayer, NormedLayer) for _ in range(2))
    surgery = wrap_blocks(model, save="norm", self_check=self_check)
    for seed in range(8):  # the first three are looked at closely, later ones by sums
        assert differences(step(model, seed=seed), step(plain, seed=seed)) == []
    assert "save norm: 3 results in the last step" in str(surgery)


class StatisticsReader(nn.Module):
    """A layer that multiplies by a running variance, after its norm has written it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, hidden_states: Tensor) -> Tensor:
        made: Tensor = self.linear(self.norm(hidden_states))
        return hidden_states + made * self.norm.get_buffer("running_var")


def test_what_reads_running_statistics_after_a_kept_norm_reads_those_of_the_forward() -> None:
    plain = nn.Sequential(StatisticsReader(), StatisticsReader()).train()
    model = copy.deepcopy(plain)
    wrap_blocks(model, save="norm", blocks=StatisticsReader, self_check="never")
    for seed in range(4):
        gradients = []
        for each in (model, plain):
            torch.manual_seed(seed)
            each.zero_grad()
            each(torch.randn(6, 4, requires_grad=True)).square().sum().backward()
            gradients.append([p.grad for p in each.parameters() if p.grad is not None])
        assert all(map(torch.equal, *gradients))
        assert all(map(torch.equal, model.buffers(), plain.buffers()))


NEXT: SimpleQueue[int] = SimpleQueue()
"""What a block's next runs read: a surgery cannot wind it back."""


def run_again(block: Callable[[], nn.Module], now: int, again: int, **options: Any) -> None:
    """Run two blocks and their backward, with other numbers in the recompute."""
    model = nn.Sequential(block(), block()).train()
    wrap_blocks(model, blocks=type(model[0]), **options)
    while not NEXT.empty():
        NEXT.get_nowait()
    for number in (now, now, again, again):
        NEXT.put(number)
    model(torch.ones(4, 4, requires_grad=True)).sum().backward()


class Scaling(nn.Module):
    """A layer that multiplies by a non-argument; `by_data`, by a parameter that it writes uncounted."""

    def __init__(self, *, by_data: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.linear = nn.Linear(4, 4)
        self.by_data = by_data

    def forward(self, hidden_states: Tensor) -> Tensor:
        scale: Any = NEXT.get_nowait()
        if self.by_data:
            self.scale.data.mul_(scale)
            scale = self.scale
        result: Tensor = self.linear(hidden_states * scale)
        return result.sin()


@pytest.mark.parametrize("by_data", [False, True], ids=["a number", "a parameter"])
def test_what_is_kept_does_not_hide_what_went_into_it(by_data: bool) -> None:
    def block() -> nn.Module:
        return Scaling(by_data=by_data)

    run_again(block, 1, 1, save=["aten.mul", "matmul"])
    with pytest.raises(SurgeryError, match=r"recomput\w+ (of )?Scaling 1 "):
        run_again(block, 1, 3, save=["aten.mul", "matmul"])


# Routers


class NoisyExperts(nn.Module):
    """Experts whose scores have noise that nobody can put back. `draws` is where the noise comes from."""

    def __init__(self, draws: Callable[[], float]) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.draws = [draws]

    def forward(self, hidden_states: Tensor) -> Tensor:
        logits = self.gate(hidden_states)
        noise = torch.tensor([self.draws[0]() for _ in range(logits.numel())]).view_as(logits)
        weights, chosen = (logits + noise).softmax(-1).topk(2)
        weights /= weights.sum(-1, keepdim=True)
        result = hidden_states
        for place in range(2):
            made = torch.stack([expert(hidden_states) for expert in self.experts], 1)
            picked = made[torch.arange(len(chosen)), chosen[:, place]]
            result = result + weights[:, place : place + 1] * picked
        return result


class Mixture(nn.Module):
    def __init__(self, draws: Callable[[], float]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([NoisyExperts(draws) for _ in range(3)])

    def forward(self, hidden_states: Tensor) -> Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states.square().sum()


class Noise:
    """Numbers of the operating system, or those of an earlier run again."""

    def __init__(self, again: Iterable[float] = ()) -> None:
        self.drawn: list[float] = []
        self._again = list(again)

    def __call__(self) -> float:
        self.drawn.append(self._again.pop(0) if self._again else random.SystemRandom().random())
        return self.drawn[-1]


def mixture(noise: Noise) -> Mixture:
    torch.manual_seed(0)
    return Mixture(noise).train()


def test_a_noisy_router_is_refused_unless_it_is_kept() -> None:
    hidden_states = torch.randn(12, 8, generator=torch.Generator().manual_seed(3))
    model = mixture(Noise())
    wrap_blocks(model, blocks=NoisyExperts)
    with pytest.raises(SurgeryError, match=r"the recompute routed \d+ of 12 tokens to other experts"):
        model(hidden_states).backward()
    model = mixture(noise := Noise())
    wrap_blocks(model, save="router", blocks=NoisyExperts)
    loss = model(hidden_states)
    plain = mixture(Noise(noise.drawn))
    loss.backward()
    plain(hidden_states).backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad), name


# Randomness


def test_dropout_masks_stand_in_for_the_state_of_generators() -> None:
    model = gpt2()
    with pytest.raises(SurgeryError, match=r"preserve_rng_state=False while .* acts at random"):
        wrap_blocks(model, preserve_rng_state=False, save="attention")
    wrap_blocks(model, preserve_rng_state=False, save="random", self_check="always")
    assert equal(model, without(gpt2()))


class Drawing(nn.Module):
    """A layer with two draws of which one may be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.weight * torch.rand(4) * torch.randn(4).exp() + hidden_states


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Drawing() for _ in range(3)])

    def forward(self, hidden_states: Tensor) -> Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states.sum()


def test_draws_that_are_run_again_follow_those_kept() -> None:
    results = []
    for save in (None, "aten.rand"):
        torch.manual_seed(7)
        model = Drawn().train()
        wrap_blocks(model, save=save, self_check="never")
        for _ in range(2):
            model(torch.ones(4)).backward()
        results.append([p.grad for p in model.parameters()] + [torch.rand(1)])
    assert all(map(torch.equal, *results))


@torch.library.custom_op("ckpt_surgery_tests::attention", mutates_args=())
def outside_attention(weights: Tensor, dropout_p: float) -> Tensor:
    """Draw like a kernel of another library: no tag says so."""
    return weights * (torch.rand_like(weights) > dropout_p)


def _gradient_of_weights(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient, None


outside_attention.register_autograd(_gradient_of_weights)


class Outside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, hidden_states: Tensor) -> Tensor:
        result: Tensor = self.dropout(outside_attention(self.linear(hidden_states), 0.5))
        return result.sin()


def test_a_foreign_kernel_that_draws_leaves_the_generators_in_place() -> None:
    results = []
    for save in (None, "ckpt_surgery_tests.attention"):
        torch.manual_seed(7)
        model = nn.Sequential(Outside(), Outside()).train()
        wrap_blocks(model, save=save, self_check="never", blocks=Outside)
        model(torch.ones(3, 4)).sum().backward()
        results.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *results))


# Errors


def test_a_name_that_matches_nothing_is_reported_with_what_the_blocks_run() -> None:
    model = llama(2)
    surgery = wrap_blocks(model, save=["attention", "conv"])
    loss = model(**tokens()).loss
    message = r"save names 'conv', and the blocks run nothing of the kind: .* they run: aten\.mul \(.*aten\.mm \(14\)"
    with pytest.raises(SurgeryError, match=message):
        loss.backward()
    assert str(surgery).splitlines()[-1] == "save conv: the blocks have run nothing of the kind so far"


def test_nothing_is_said_of_a_name_while_blocks_have_not_run() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)])
            self.conv = nn.ModuleList([nn.Sequential(nn.Conv1d(4, 4, 1), nn.Tanh()) for _ in range(2)])

        def forward(self, hidden_states: Tensor, *, both: bool) -> Tensor:
            for block in (*self.linear, *(self.conv if both else ())):
                hidden_states = block(hidden_states)
            return hidden_states.sum()

    model = Two().train()
    surgery = wrap_blocks(model, save="conv")
    model(torch.randn(4, 4), both=False).backward()
    assert str(surgery).endswith("save conv: the blocks have run nothing of the kind so far")
    model(torch.randn(4, 4), both=True).backward()
    assert "save conv: 2 results in the last step" in str(surgery)
    wrap_blocks(model, save="aten.topk")
    model(torch.randn(4, 4), both=False).backward()
    with pytest.raises(SurgeryError, match=r"save names 'aten\.topk'"):
        model(torch.randn(4, 4), both=True).backward()


def test_a_frozen_block_is_not_waited_for() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]).train()
    model[0].requires_grad_(False)
    wrap_blocks(model, save="conv", blocks=nn.Sequential)
    loss = model(torch.randn(2, 4)).sum()
    with pytest.raises(SurgeryError, match=r"save names 'conv', and .* they run: aten\.addmm \(2\), aten\.tanh \(2\)"):
        loss.backward()


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, hidden_states: Tensor) -> Tensor:
        rows = NEXT.get_nowait()
        return (hidden_states[:rows] @ self.weight).sin().mean() + hidden_states


def test_an_operator_that_gets_other_shapes_is_refused() -> None:
    run_again(Rows, 4, 4, save="matmul", self_check="never")
    with pytest.raises(SurgeryError, match=r"recompute of Rows 1 runs aten\.(mm|matmul) otherwise than its forward"):
        run_again(Rows, 4, 2, save="matmul", self_check="never")


class Slope(nn.Module):
    """A block that takes a gradient, which runs it again in the middle of its forward."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.before, self.after = (nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(n)) for n in (before, after))
        self.energy = nn.Linear(SIZE, SIZE)

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.before:
            hidden = hidden + torch.tanh(layer(hidden))
        energy = torch.tanh(self.energy(hidden)).square().sum()
        hidden = hidden - torch.autograd.grad(energy, hidden, create_graph=True)[0]
        for layer in self.after:
            hidden = hidden + torch.tanh(layer(hidden))
        return hidden


def slopes(before: int, after: int, **options: Any) -> list[Tensor]:
    """Return the gradients of two such blocks behind a layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIZE, SIZE), *(Slope(before, after) for _ in range(2)))
    if options:
        wrap_blocks(model, blocks=Slope, self_check="never", **options)
    model(torch.linspace(-1, 1, ROWS * SIZE).view(ROWS, SIZE)).square().sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("save", ["aten.tanh", "aten.tanh:2", "aten.tanh:3", "matmul:2"])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3)])
def test_what_runs_again_within_a_forward_is_not_noted_as_its_own(before: int, after: int, save: str) -> None:
    assert all(map(torch.equal, slopes(before, after, save=save), slopes(before, after)))


class GivenUp(Exception):
    """The end of a forward."""


def give_up(*_: object) -> None:
    raise GivenUp


@pytest.mark.parametrize("held", [False, True])
def test_a_forward_that_is_given_up_is_not_counted_in_the_step(held: bool) -> None:
    model = llama(3)
    surgery = wrap_blocks(model, save=["attention", "matmul:2"])
    model(**tokens()).loss.backward()
    (policy,) = surgery.policies
    table, kept = str(surgery), dict(policy.kept)
    waiting = model(**tokens()).loss if held else model(**tokens()).loss.item()
    handle = model.model.layers[2].mlp.register_forward_hook(give_up)
    with suppress(GivenUp):  # pytest.raises would hold the frames of the forward
        model(**tokens())
    handle.remove()
    assert pickle.loads(pickle.dumps(policy)).kept == {}, "a copy has no forward that waits"
    model(**tokens()).loss.backward()
    assert (policy.kept == kept) == (str(surgery) == table) == (not held)
    assert {entry.results for entry in policy.kept.values()} == ({6, 24} if held else {3, 12})
    del waiting


def test_noted_twice_it_would_be_given_to_another_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeptResults, "recompute", lambda kept: _GivingMode(kept))
    assert not all(map(torch.equal, slopes(1, 1, save="aten.tanh:2"), slopes(1, 1)))


def selecting() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])  # type: ignore[no-untyped-call]


def watching() -> Any:
    ENTERED.append("")
    return nullcontext(), nullcontext()


ENTERED: list[str] = []


def test_contexts_go_with_a_policy_unless_they_choose_too() -> None:
    model = llama(2)
    ENTERED.clear()
    surgery = wrap_blocks(model, save="attention", context_fn=watching)
    assert equal(model, without(llama(2)))
    assert len(ENTERED) == 2 * 3
    assert surgery.policies[0].bytes.total() == 2 * ATTENTION_BYTES
    wrap_blocks(model, save="attention", context_fn=selecting)
    with pytest.raises(SurgeryError, match=r"^save and context_fn both say what is kept: give one of the two$"):
        model(**tokens())


# With everything else


@pytest.mark.parametrize(
    "options",
    [{"every_n": 2}, {"first": 1}, {"offload": "cpu"}, {"self_check": "always"}, {"use_reentrant": True}],
    ids=str,
)
def test_a_policy_goes_with_the_other_options(options: dict[str, Any]) -> None:
    model = dropping_llama()
    wrap_blocks(model, save=["attention", "matmul:2"], **options)
    assert equal(model, without(dropping_llama()))


def test_a_policy_is_copied_pickled_and_taken_back() -> None:
    model = llama(2)
    state = {name: dict(vars(module)) for name, module in model.named_modules()}
    surgery = wrap_blocks(model, save=["attention", "matmul:2"])
    assert equal(model, without(llama(2)))
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other._ckpt_surgery.policies[0].save == ("attention", "matmul:2")
        assert other._ckpt_surgery.policies[0] is not surgery.policies[0]
        assert equal(other, without(llama(2)))
    assert pickle.loads(pickle.dumps(surgery.options)) == surgery.options
    surgery.undo()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == {n: set(s) for n, s in state.items()}
    assert counts(model)[1][KERNEL] == 0


def test_verify_holds_a_policy_against_what_it_was_told_to_keep_and_spare() -> None:
    model = llama(3)
    surgery = wrap_blocks(model, save=["aten.mm", "aten.mul", "aten.silu", "aten.add"])
    blocks = layers_of_named(model)
    reference = run_step(model, tokens(), blocks=blocks)
    run = run_step(model, tokens(), blocks=blocks, checkpointing="non_reentrant")
    verdict = compare(reference, run)
    assert verdict.ok, verdict.faults
    assert verdict.cost is not None
    assert verdict.cost.best_kept_bytes == reference.memory.best + surgery.policies[0].bytes.total()
    assert verdict.cost.best_backward_flops == reference.flops.backward + reference.flops.blocks - run.flops.spared
    untold = compare(reference, replace(run, memory=replace(run.memory, kept_by_policy={})))
    assert [fault.level for fault in untold.faults] == ["cost"]
    again = compare(reference, replace(run, flops=replace(run.flops, backward=run.flops.backward + run.flops.spared)))
    assert [fault.kind for fault in again.faults] == [FaultKind.BACKWARD_FLOPS]


def test_verify_says_what_a_policy_keeps() -> None:
    model = llama(3)
    wrap_blocks(model, save=["attention", "matmul:2"])
    report = verify(model, tokens(), modes=["non_reentrant"])
    assert report.status == "ok"
    assert "  non_reentrant, save attention: 3 results in the last step, 5.1 KiB, 13.8 kFLOP not done again" in str(
        report
    )
    assert Report.from_dict(report.to_dict()) == report
    assert [kept.name for kept in report.modes[0].kept_results] == ["attention", "matmul:2"]


one_kernel = pytest.mark.skipif(torch.__version__ < "2.9", reason="torch 2.8 takes attention apart in a block alone")


class OldContext:
    """A policy's context in torch before 2.12: it does not say what an operator made."""

    def __init__(self, *, is_recompute: bool, **_: Any) -> None:
        self.is_recompute = is_recompute


@pytest.mark.parametrize(
    "single", [False, pytest.param(True, marks=one_kernel)], ids=["the whole model", "single blocks"]
)
def test_compiled_blocks_keep_by_the_same_names(single: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.checkpoint.SelectiveCheckpointContext", OldContext)
    results = []
    for save in (None, ["attention", "matmul:2", "random"]):
        torch._dynamo.reset()
        model = llama(1)
        wrap_blocks(model, save=save)
        for part in model.model.layers if single else [model]:
            part.compile(backend="aot_eager", fullgraph=True)
        backward = ran_in(model(**tokens()).loss.backward)
        results.append((backward[KERNEL], [parameter.grad for parameter in model.parameters()]))
    (again, plain), (not_again, ours) = results
    assert again == 1
    assert not_again == 0
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
