"""A recompute sees what its forward saw, or is refused by name: each block is shown to be wrong without that."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.late_copies import Deferred
from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.self_check import check as self_check
from ckpt_surgery.runtime.surgery import checkpointing
from tests.zoo import state_toys as toys
from tests.zoo.stack_toys import WIDTH, Recurrent
from tests.zoo.surgery_toys import Mode, both_modes

pytestmark = [pytest.mark.torch]

Make = Callable[[], list[nn.Module]]


def two(kind: Callable[[], nn.Module]) -> Make:
    return lambda: [kind(), kind()]


def sharing() -> list[nn.Module]:
    holder: dict[str, Tensor] = {}
    return [toys.SharingBlock(holder), toys.SharingBlock(holder)]


RESTORED: dict[str, Make] = {
    "random": two(toys.PythonBlock),
    "numpy.random": two(toys.NumpyBlock),
    "generators of its own": two(toys.OwnGeneratorsBlock),
    "nested state": two(toys.NestedStateBlock),
    "an iterator": two(toys.IteratorBlock),
    "a list of the Python module": two(toys.LoggingBlock),
    "a number of the Python module": two(toys.GlobalCountBlock),
    "a number on a parameter": two(toys.OnParameterBlock),
    "a codebook": two(toys.CodebookBlock),
    "a momentum encoder": two(toys.FollowingBlock),
    "a gradient inside": two(toys.EnergyBlock),
    "a holder that blocks share": sharing,
}
REFUSED: dict[str, tuple[Make, str]] = {
    "a generator": (two(toys.GeneratorBlock), r"its numbers went on with a generator"),
    "an iterator over a generator": (two(toys.ZippedGeneratorBlock), r"its numbers went on with a generator"),
    "a clock": (
        two(toys.DriftingBlock),
        r"made something else than its forward: .* it makes something else each time",
    ),
    "other experts": (
        two(lambda: toys.RoutingBlock(drift=0.05)),
        r"the recompute routed \d+ of 16 tokens to other experts",
    ),
}


def stack(make: Make) -> toys.Stack:
    torch.manual_seed(0)
    toys.LOG.clear()
    toys.CALLS = 0
    return toys.Stack(make())


def train(model: toys.Stack, steps: int = 2) -> list[Any]:
    """The losses and gradients of a few steps, and the state in the end."""
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(1)
    results: list[Any] = []
    for number in range(steps):
        model.zero_grad()
        loss = model(torch.linspace(-1, 1 + number, 16 * toys.WIDTH).view(16, toys.WIDTH))
        loss.backward()
        results += [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [*results, *model.buffers(), torch.tensor(random.random()), torch.tensor(numpy.random.rand())]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.allclose(a.double(), b.double(), rtol=0, atol=1e-6) for a, b in zip(ours, theirs, strict=True)
    )


def checkpoint_natively(model: toys.Stack, mode: Mode) -> None:
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=mode == "reentrant")


@both_modes
@pytest.mark.parametrize("offload", [None, "cpu"])
@pytest.mark.parametrize("make", RESTORED.values(), ids=list(RESTORED))
def test_what_a_block_reads_and_writes_is_restored(
    make: Make, offload: Any, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    offloader = Offloader(Deferred(0), minimum_bytes=0) if offload else None
    monkeypatch.setattr(checkpointing, "_offloader", lambda options: offloader)
    expected = train(stack(make))
    wrapped = stack(make)
    surgery = wrap_blocks(wrapped, use_reentrant=mode == "reentrant", offload=offload)
    assert same(train(wrapped), expected)
    assert surgery.stats is None or surgery.stats.tensors > 0
    native = stack(make)
    checkpoint_natively(native, mode)
    with contextlib.suppress(RuntimeError):  # some fail under torch's own checkpointing, others are wrong
        assert not same(train(native), expected)


@both_modes
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_restored_is_refused_by_name(make: Make, message: str, mode: Mode) -> None:
    model = stack(make)
    name = type(model.layers[0]).__name__
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    with pytest.raises(SurgeryError, match=rf"{name} layers\.\d .*{message}"):
        train(model)


@both_modes
def test_a_model_may_write_into_the_view_that_a_block_returns(mode: Mode) -> None:
    plain, wrapped, native = (toys.WritingStack([toys.TurnedBlock(), toys.TurnedBlock()]) for _ in range(3))
    for model in (wrapped, native):
        model.load_state_dict(plain.state_dict())
    wrap_blocks(wrapped, use_reentrant=mode == "reentrant")
    expected = train(plain)
    assert same(train(wrapped), expected)
    checkpoint_natively(native, mode)
    if mode == "reentrant":
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            train(native)


def test_a_view_that_a_block_keeps_is_not_replaced() -> None:
    model = toys.WritingStack([toys.TurnedBlock(keeps=True), toys.TurnedBlock()])
    wrap_blocks(model, use_reentrant=True)
    with pytest.raises(RuntimeError, match="is a view"):
        train(model)


def test_a_function_that_reads_its_saved_tensors_twice_is_refused_by_name() -> None:
    model = toys.Stack([toys.ReadingTwiceBlock(), toys.ReadingTwiceBlock()])
    wrap_blocks(model, use_reentrant=False)
    with pytest.raises(SurgeryError, match=r"ReadingTwiceBlock layers\.1 cannot be recomputed: .* unpacked once"):
        train(model)


@both_modes
def test_without_the_check_a_drift_is_silent_and_with_an_interval_it_is_found_later(mode: Mode) -> None:
    make = two(toys.DriftingBlock)
    model = stack(make)
    surgery = wrap_blocks(model, use_reentrant=mode == "reentrant", self_check="never")
    assert not same(train(model), train(stack(make)))
    surgery.undo()
    quiet = stack(two(lambda: toys.DriftingBlock(size=0.0)))
    wrap_blocks(quiet, use_reentrant=mode == "reentrant", self_check=4)
    train(quiet, steps=2)
    layers: list[Any] = list(quiet.layers)
    for layer in layers:
        layer.size = 0.1
    train(quiet, steps=2)
    with pytest.raises(SurgeryError, match="made something else"):
        train(quiet, steps=1)


@both_modes
def test_drift_that_the_results_do_not_show_is_told_where_it_is_rounded(mode: Mode) -> None:
    model = stack(two(toys.RoundedDriftBlock))
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    if mode == "non_reentrant":  # its gradients are those of the forward, which nothing replaces
        assert same(train(model, steps=1), train(stack(two(toys.RoundedDriftBlock)), steps=1))
        return
    with pytest.raises(
        SurgeryError,
        match=r"^the recompute of RoundedDriftBlock layers\.1 made something else than its forward: a tensor of "
        r"16x6 float32 is off by about \S+ of its magnitude; it makes something else each time",
    ):
        train(model, steps=1)


@both_modes
def test_rounding_without_drift_is_no_drift(mode: Mode) -> None:
    for kind in (partial(toys.RoundedDriftBlock, 0.0), partial(toys.RoundedDriftBlock, 1e-8)):
        model = stack(two(kind))
        wrap_blocks(model, use_reentrant=mode == "reentrant", self_check="always")
        assert same(train(model, steps=4), train(stack(two(kind)), steps=4))


@both_modes
def test_noise_is_no_drift_and_drift_is_no_noise(mode: Mode) -> None:
    for size, refused in ((1e-5, False), (1e-2, True)):
        model = stack(two(partial(toys.NoisyBlock, size)))
        wrap_blocks(model, use_reentrant=mode == "reentrant", self_check="always")
        if refused:
            with pytest.raises(SurgeryError, match="it makes something else each time"):
                train(model, steps=4)
        else:
            train(model, steps=4)


@both_modes
def test_healthy_blocks_are_never_refused(mode: Mode) -> None:
    for kind in (toys.ScalingBlock, toys.RoutingBlock, toys.EnergyBlock):
        model = stack(two(kind))
        wrap_blocks(model, use_reentrant=mode == "reentrant", self_check="always")
        assert same(train(model, steps=4), train(stack(two(kind)), steps=4))


def test_the_difference_is_named_with_its_place() -> None:
    model = stack(two(toys.DriftingBlock))
    wrap_blocks(model)
    with pytest.raises(
        SurgeryError,
        match=r"^the recompute of DriftingBlock layers\.1 .*: a tensor of 16x6 float32( in up)? is off by about "
        r"0\.\d+ of its magnitude; it",
    ):
        train(model)


class _SavingUnset(torch.autograd.Function):
    """Saves memory that nobody has set, as kernels of attention on CUDA do for a dropout that there is not."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, unset: Tensor) -> Tensor:
        ctx.save_for_backward(values, unset)
        return values * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        values, _ = ctx.saved_tensors
        return gradients[0] * 2 + 0 * values, None


class _UnsetBlock(nn.Module):
    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dtype, self.shape = dtype, shape

    def forward(self, values: Tensor) -> Tensor:
        drawn = [random.SystemRandom().randrange(256) for _ in range(torch.Size(self.shape).numel())]
        unset = torch.tensor(drawn).reshape(self.shape).to(self.dtype)
        return self.linear(_SavingUnset.apply(values, unset))  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize(
    ("dtype", "shape", "accelerator", "refused"),
    [
        (torch.uint64, (2,), True, False),
        (torch.int64, (), True, False),
        (torch.uint8, (64,), True, False),
        (torch.uint8, (64,), False, False),
        (torch.uint8, (8, 8), True, True),
        (torch.int64, (3,), True, True),
        (torch.float32, (2,), True, True),
        (torch.uint64, (2,), False, True),
    ],
    ids=str,
)
def test_memory_that_kernels_leave_unset_is_not_compared(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    accelerator: bool,
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(self_check, "on_accelerator", lambda block: accelerator)
    model = nn.Sequential(*(_UnsetBlock(dtype, shape) for _ in range(2)))
    wrap_blocks(model, self_check="always")
    told = pytest.raises(SurgeryError, match="made something else") if refused else contextlib.nullcontext()
    with told:
        model(torch.ones(3, 4, requires_grad=True)).sum().backward()


def test_the_workspace_of_recurrent_layers_may_hold_anything() -> None:
    """Most of it is left by oneDNN as memory was, which is other bytes before each run here."""

    class AfterNoise(nn.LSTM):
        def forward(self, *arguments: Any) -> Any:
            for size in range(24_000, 32_000, 64):
                torch.full((size,), random.SystemRandom().randrange(256), dtype=torch.uint8)
            return super().forward(*arguments)

    model = Recurrent()
    model.layers = nn.ModuleList(AfterNoise(WIDTH, WIDTH) for _ in range(2))
    with wrap_blocks(model, self_check="always"):
        for _ in range(20):
            model(torch.ones(6, 2, WIDTH, requires_grad=True)).sum().backward()


def test_where_torch_does_not_show_saved_tensors_results_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_top_hooks", None)
    from ckpt_surgery.runtime.checkpoint import recompute

    monkeypatch.setattr(recompute, "SEES_SAVED_TENSORS", False)
    healthy, drifting = stack(two(toys.ScalingBlock)), stack(two(toys.DriftingBlock))
    wrap_blocks(healthy)
    assert same(train(healthy), train(stack(two(toys.ScalingBlock))))
    wrap_blocks(drifting)
    with torch.utils.checkpoint.set_checkpoint_early_stop(False), pytest.raises(SurgeryError, match="something else"):
        train(drifting)


Between = Callable[[toys.Stack], None]


def update(model: toys.Stack) -> None:
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.mul_(0.9)


def update_through_data(model: toys.Stack) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(0.9)


def freeze(model: toys.Stack) -> None:
    model.layers.requires_grad_(False)


def replace(model: toys.Stack) -> None:
    layers: list[Any] = list(model.layers)
    for layer in layers:
        layer.up.weight = nn.Parameter(layer.up.weight.detach() * 2)


def evaluate(model: toys.Stack) -> None:
    model.eval()


def gradients_after(model: toys.Stack, between: Between) -> list[Tensor | None]:
    parameters = list(model.parameters())
    torch.manual_seed(1)
    loss = model(torch.linspace(-1, 1, 16 * toys.WIDTH).view(16, toys.WIDTH))
    between(model)
    loss.backward()
    return [parameter.grad for parameter in parameters]


@both_modes
@pytest.mark.parametrize("between", [replace, evaluate])
def test_what_changes_between_forward_and_backward_is_put_back(between: Between, mode: Mode) -> None:
    make = two(toys.ScalingBlock)
    model = stack(make)
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    ours, theirs = gradients_after(model, between), gradients_after(stack(make), between)
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_parameters_that_are_frozen_between_are_recomputed_as_they_were() -> None:
    make = two(toys.ScalingBlock)
    model = stack(make)
    wrap_blocks(model)
    ours, theirs = gradients_after(model, freeze), gradients_after(stack(make), freeze)
    assert [a is None for a in ours] == [b is None for b in theirs]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None)
    assert not any(parameter.requires_grad for parameter in model.layers.parameters())


@both_modes
@pytest.mark.parametrize(
    ("between", "message"), [(update, "was modified in place"), (update_through_data, "made something else")]
)
def test_weights_that_are_updated_between_are_refused(between: Between, message: str, mode: Mode) -> None:
    model = stack(two(toys.ScalingBlock))
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    with pytest.raises(SurgeryError, match=rf"ScalingBlock layers\.1 .*{message}"):
        gradients_after(model, between)


@both_modes
def test_a_layer_that_is_made_in_the_first_forward_trains(mode: Mode) -> None:
    make = two(toys.LazyBlock)
    model = stack(make)
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    assert same(train(model), train(stack(make)))


def test_a_layer_that_is_made_anew_in_each_forward_is_refused_in_reentrant_mode() -> None:
    model = stack(two(toys.AnewBlock))
    wrap_blocks(model, use_reentrant=True)
    with pytest.raises(SurgeryError, match=r"AnewBlock layers\.1 makes its late in its forward, each time anew"):
        train(model)


@pytest.mark.parametrize("every_n", [1, 2])
def test_a_cache_from_which_another_block_reads_is_refused_in_reentrant_mode(every_n: int) -> None:
    model = toys.CachingStack([toys.CachingBlock(0), toys.CachingBlock(1)])
    wrap_blocks(model, use_reentrant=True, every_n=every_n)
    message = (
        "computes something else without the cache" if every_n == 1 else "into past_key_values was used by others"
    )
    with pytest.raises(SurgeryError, match=rf"CachingBlock layers\.\d .*{message}"):
        train(model)


def test_a_block_that_is_given_a_cache_counts_each_call_once_and_may_raise() -> None:
    results = []
    for surgery in (False, True):
        torch.manual_seed(0)
        model = toys.CachingStack([toys.PairBlock(0), toys.PairBlock(1)])
        if surgery:
            wrap_blocks(model, use_reentrant=True)
        layers: Any = model.layers
        for layer in layers:
            layer.scaled.register_forward_hook(lambda *_: None)
        train(model, steps=1)
        layers[1].broken = True
        with pytest.raises(InterruptedError):
            model(torch.ones(2, toys.WIDTH))
        layers[1].broken = False
        results.append([*train(model), *(layer.pair[0] for layer in layers)])
        assert not any(layer.table.requires_grad for layer in layers)
    assert same(*results)


def test_a_gradient_that_a_block_takes_of_its_input_is_not_taken_twice() -> None:
    results = []
    for surgery in (False, True):
        torch.manual_seed(0)
        model = toys.Stack([toys.InnerGradientBlock(), toys.InnerGradientBlock()])
        if surgery:
            wrap_blocks(model)
        kept: list[Tensor] = []
        hidden = model.first(torch.ones(2, toys.WIDTH))
        hidden.retain_grad()
        hidden.register_hook(kept.append)
        for layer in model.layers:
            hidden = layer(hidden)
            hidden.retain_grad()
            kept.append(hidden)
        hidden.sum().backward()
        results.append([each if each.grad is None else each.grad for each in kept])
    assert same(*results)


@both_modes
def test_a_view_of_a_parameter_may_be_an_argument(mode: Mode) -> None:
    plain, wrapped = (toys.QueriedStack([toys.ScalingBlock(), toys.ScalingBlock()]) for _ in range(2))
    wrapped.load_state_dict(plain.state_dict())
    wrap_blocks(wrapped, use_reentrant=mode == "reentrant")
    assert same(train(wrapped), train(plain))


def test_weights_of_a_module_among_the_arguments_are_held_against_those_of_the_forward() -> None:
    model = toys.Stack([toys.ScalingBlock(), toys.ScalingBlock()])
    helper = nn.Linear(toys.WIDTH, toys.WIDTH)
    layers: Any = model.layers
    for layer in layers:
        layer.forward = lambda hidden, module: module(hidden)
    model.run = lambda layer, hidden: layer(hidden, helper)  # type: ignore[method-assign]
    wrap_blocks(model)
    own, others = helper.weight, (helper.weight * 2)
    del helper.weight
    helper.weight = others
    loss = model(torch.ones(2, toys.WIDTH))
    helper.weight = own
    with pytest.raises(
        SurgeryError, match=r"ScalingBlock layers\.1 made something else than its forward: .* has other"
    ):
        loss.backward()


def test_a_block_that_does_not_run_without_its_cache_is_refused_in_reentrant_mode() -> None:
    model = toys.CachingStack([toys.NeedingCacheBlock(), toys.NeedingCacheBlock()])
    wrap_blocks(model, use_reentrant=True)
    with pytest.raises(SurgeryError, match=r"NeedingCacheBlock layers\.0 does not run without the cache"):
        train(model)


def test_layers_without_a_size_are_refused_until_they_have_one() -> None:
    model, plain = stack(two(toys.LazySizeBlock)), stack(two(toys.LazySizeBlock))
    with pytest.raises(SurgeryError, match=r"layers\.0\.late\.weight has no size before the first forward"):
        wrap_blocks(model)
    for each in (model, plain):
        torch.manual_seed(1)
        each(torch.ones(2, toys.WIDTH))
    wrap_blocks(model)
    assert same(train(model), train(plain))


def test_a_tensor_with_gradient_from_outside_is_refused_in_reentrant_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys, "TABLE", torch.tanh(torch.ones(toys.WIDTH, requires_grad=True)))
    model = stack(two(toys.GlobalTableBlock))
    wrap_blocks(model, use_reentrant=True)
    with pytest.raises(SurgeryError, match=r"GlobalTableBlock layers\.1 used a tensor with gradient that is no"):
        train(model)


def test_compiled_parts_of_blocks_are_not_compiled_with_the_check() -> None:
    for reentrant in (True, False):
        model, plain = stack(two(toys.CompiledPartBlock)), stack(two(toys.CompiledPartBlock))
        wrap_blocks(model, use_reentrant=reentrant)
        assert same(train(model), train(plain))


@both_modes
def test_a_table_that_a_global_comes_to_hold_stays_the_same_one(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys, "LAZY", None)
    model = stack(two(toys.LazyGlobalBlock))
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    loss = model(torch.ones(2, toys.WIDTH))
    made = toys.LAZY
    assert made is not None
    loss.backward()
    assert toys.LAZY is made


@both_modes
def test_a_write_into_an_argument_is_named_where_the_forward_fails_after_it(mode: Mode) -> None:
    def fail(hidden: Tensor) -> Tensor:
        hidden.add_(1)
        raise InterruptedError

    model = stack(two(toys.ScalingBlock))
    layers: Any = model.layers
    layers[0].forward = fail
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    with pytest.raises(SurgeryError, match=r"ScalingBlock layers\.0 cannot be recomputed: it modified its argument"):
        train(model)


def test_a_table_that_a_hook_sees_is_no_result_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stack(two(toys.GlobalTableBlock))
    wrap_blocks(model, use_reentrant=True, every_n=2)
    layers: Any = model.layers
    kept: list[Tensor] = []
    layers[0].scaled.register_forward_hook(lambda module, args, output: kept.append(args[1]))
    plain = stack(two(toys.GlobalTableBlock))
    for _ in range(5):  # the first three are checked
        assert same(train(model), train(plain))
        assert not toys.TABLE.requires_grad
    monkeypatch.setattr(toys.GlobalTableBlock, "learned", True)
    with pytest.raises(SurgeryError, match=r"layers\.0 gave a Scaled with a hook a tensor with gradient, and one w"):
        train(model)


@pytest.mark.parametrize("every_n", [1, 2])
def test_what_a_hook_keeps_of_a_block_with_a_cache_is_refused(every_n: int) -> None:
    model = toys.CachingStack([toys.PairBlock(0), toys.PairBlock(1)])
    wrap_blocks(model, use_reentrant=True, every_n=every_n)
    layers: Any = model.layers
    kept: list[Tensor] = []
    layers[0].up.register_forward_hook(lambda module, args, output: kept.append(output))
    loss = model(torch.ones(2, toys.WIDTH))
    with pytest.raises(SurgeryError, match=r"a tensor that a hook kept inside PairBlock layers\.0 was used by others"):
        (loss + kept[0].sum()).backward()


def test_a_foreign_block_with_a_cache_keeps_its_use_cache() -> None:
    model, plain = (toys.Stack([toys.CachingBlock(0), toys.CachingBlock(1)]) for _ in range(2))
    layers: Any = (*model.layers, *plain.layers)
    for layer in layers:
        layer.forward = lambda hidden, past_key_values=None, use_cache=False: hidden * (3.0 if use_cache else 1.0)
    plain.load_state_dict(model.state_dict())
    for each in (model, plain):
        each.run = lambda layer, hidden: layer(hidden, past_key_values=toys.KeyCache(), use_cache=True)  # type: ignore[method-assign]
    wrap_blocks(model)
    assert same(train(model), train(plain))


@both_modes
def test_a_block_with_a_scripted_part_is_copied_and_its_drift_told(mode: Mode) -> None:
    model = stack(two(toys.ScriptedBlock))
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    train(model)
    values = torch.ones(2, toys.WIDTH)
    assert torch.equal(copy.deepcopy(model)(values), model(values))
    layers: Any = model.layers
    layers[0].scale = toys.DriftingBlock().scale
    with pytest.raises(SurgeryError, match=r"ScriptedBlock layers\.0 made something else than its forward"):
        train(model)


@both_modes
def test_a_block_leaves_alone_what_the_blocks_that_it_knows_have_made(mode: Mode) -> None:
    blocks: list[nn.Module] = []
    model = toys.Stack([toys.KnowingBlock(blocks), toys.KnowingBlock(blocks)])
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    train(model, steps=1)
    layers: Any = model.layers
    assert all(layer.table is not None for layer in layers)


@both_modes
def test_a_copy_of_a_trained_model_trains_on(mode: Mode) -> None:
    make = two(toys.NestedStateBlock)
    model, plain = stack(make), stack(make)
    surgery = wrap_blocks(model, use_reentrant=mode == "reentrant")
    train(model)
    train(plain)
    assert same(train(copy.deepcopy(model)), train(copy.deepcopy(plain)))
    surgery.undo()
    assert same(train(model), train(plain))
