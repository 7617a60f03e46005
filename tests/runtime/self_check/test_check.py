"""The self-check reports a recompute that differs from its forward, in whatever step that begins.

After the first steps exact sums are compared: at once on a CPU, and on a device after the backward.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")


import torch
from torch import Tensor, nn

from ckpt_surgery import SurgeryError, SurgeryWarning, wrap_blocks
from ckpt_surgery.runtime.self_check import check as self_check
from ckpt_surgery.runtime.self_check import digests, quick_check
from ckpt_surgery.runtime.self_check.schedule import FIRST_STEPS
from tests.measure.toys import model_of
from tests.zoo import hard_toys as hard
from tests.zoo import state_toys as toys
from tests.zoo.stack_toys import WIDTH, Recurrent
from tests.zoo.surgery_toys import differences, step

pytestmark = [pytest.mark.torch]

Make = toys.Make
two, stack, train, same = toys.two, toys.stack, toys.train, toys.same


def sharing() -> list[nn.Module]:
    holder: dict[str, Tensor] = {}
    return [toys.SharingBlock(holder), toys.SharingBlock(holder)]


NEVER_THE_SAME = "it makes something else each time"
REFUSED: dict[str, tuple[Make, str]] = {
    "generators of its own": (two(toys.OwnGeneratorsBlock), NEVER_THE_SAME),
    "objects that it holds": (two(toys.NestedStateBlock), NEVER_THE_SAME),
    "an iterator": (two(toys.IteratorBlock), NEVER_THE_SAME),
    "a list of the Python module": (two(toys.LoggingBlock), NEVER_THE_SAME),
    "a holder that blocks share": (sharing, NEVER_THE_SAME),
    "a clock": (two(toys.DriftingBlock), NEVER_THE_SAME),
    "other experts": (two(lambda: toys.RoutingBlock(drift=0.05)), r"routed \d+ of 16 tokens to other experts"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_changes_a_result_is_reported_at_once(make: Make, message: str) -> None:
    model = stack(make)
    name = type(model.layers[0]).__name__
    wrap_blocks(model)
    with pytest.raises(
        SurgeryError, match=rf"^recomputing {name} layers\.\d gave a different result than its forward: .*{message}"
    ):
        train(model, steps=1)


def test_what_only_counts_is_counted_twice() -> None:
    models = [model_of(*[hard.TallyLayer] * 3) for _ in range(2)]
    wrap_blocks(models[0], self_check="always")
    for model in models:
        for _ in range(4):
            step(model)
    assert differences(*map(step, models)) == []
    layers: list[Any] = list(models[0].layers)
    assert [layer.counter["calls"] for layer in layers] == [2 * 5] * 3


def test_saved_tensors_that_are_read_twice_are_refused() -> None:
    model = toys.Stack([toys.ReadingTwiceBlock(), toys.ReadingTwiceBlock()])
    wrap_blocks(model)
    with pytest.raises(SurgeryError, match=r"ReadingTwiceBlock layers\.1 cannot be recomputed: .* unpacked once"):
        train(model)


def drift_from_now_on(model: nn.Module, number: int = 0) -> None:
    layers: Any = model.get_submodule("layers")
    layers[number].size = 0.1


def quiet(blocks: int) -> toys.Stack:
    return stack(lambda: [toys.DriftingBlock(size=0.0) for _ in range(blocks)])


def test_without_the_check_a_drift_is_silent() -> None:
    model = stack(two(toys.DriftingBlock))
    wrap_blocks(model, self_check="never")
    assert not same(train(model, steps=9), train(stack(two(toys.DriftingBlock)), steps=9))


@pytest.mark.parametrize("number", range(4))
def test_a_drift_that_begins_late_is_reported_in_turn(number: int) -> None:
    model = quiet(4)
    wrap_blocks(model)
    train(model, steps=5)
    drift_from_now_on(model, number)
    with pytest.raises(SurgeryError, match=rf"recomputing DriftingBlock layers\.{number} gave"):
        train(model, steps=4)


@pytest.mark.parametrize(("size", "steps"), [(1e-3, 1), (0.0, 4), (1e-8, 4)])
def test_drift_that_changes_no_gradient_is_no_fault(size: float, steps: int) -> None:
    kind = two(partial(toys.RoundedDriftBlock, size))
    model = stack(kind)
    wrap_blocks(model, self_check="always")
    assert same(train(model, steps), train(stack(kind), steps))


@pytest.mark.parametrize(("threads", "size", "refused"), [(2, 1e-5, False), (2, 1e-2, True), (1, 1e-5, True)])
def test_noise_is_no_drift_and_drift_is_no_noise(
    threads: int, size: float, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One thread of a processor makes no noise: what differs there was drawn or counted.
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model = stack(two(partial(toys.NoisyBlock, size)))
    wrap_blocks(model, self_check="always")
    with pytest.raises(SurgeryError, match=NEVER_THE_SAME) if refused else contextlib.nullcontext():
        train(model, steps=4)


def test_healthy_blocks_are_never_refused() -> None:
    for kind in (toys.ScalingBlock, toys.RoutingBlock, toys.EnergyBlock):
        model = stack(two(kind))
        wrap_blocks(model, self_check="always")
        assert same(train(model, steps=4), train(stack(two(kind)), steps=4))


def test_the_difference_is_named_with_its_place() -> None:
    model = stack(two(toys.DriftingBlock))
    wrap_blocks(model)
    with pytest.raises(
        SurgeryError,
        match=r"^recomputing DriftingBlock layers\.1 .*: a tensor of 16x6 float32( in up)? is off by about "
        r"0\.\d+ of its magnitude; it",
    ):
        train(model)


class _SavingUnset(torch.autograd.Function):
    """A function that saves unset memory, as attention on CUDA does for the dropout it lacks."""

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
    dtype: torch.dtype, shape: tuple[int, ...], accelerator: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "on_accelerator", lambda block: accelerator)
    model = nn.Sequential(*(_UnsetBlock(dtype, shape) for _ in range(2)))
    wrap_blocks(model, self_check="always")
    told = pytest.raises(SurgeryError, match="gave a different result") if refused else contextlib.nullcontext()
    with told:
        model(torch.ones(3, 4, requires_grad=True)).sum().backward()


def test_the_workspace_of_recurrent_layers_may_hold_anything() -> None:
    # oneDNN leaves most of it uninitialised, with other bytes before each run here.
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


def update(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.get_submodule("layers").parameters():
            parameter.mul_(0.9)


def update_through_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(0.9)


def replace(model: nn.Module) -> None:
    for layer in model.get_submodule("layers").children():
        layer.get_submodule("up").weight = nn.Parameter(torch.ones(toys.WIDTH, toys.WIDTH))


def freeze(model: nn.Module) -> None:
    model.get_submodule("layers").requires_grad_(False)


CHANGES = [
    (update, "was modified in place"),
    (update_through_data, "gave a different result"),
    (replace, "gave a different result"),
    (freeze, "gave a different result"),
]


@pytest.mark.parametrize(("between", "message"), CHANGES)
def test_weights_that_change_between_are_refused(between: Callable[[nn.Module], None], message: str) -> None:
    model = stack(two(toys.ScalingBlock))
    wrap_blocks(model)
    loss = model(torch.ones(2, toys.WIDTH))
    between(model)
    with pytest.raises(SurgeryError, match=rf"ScalingBlock layers\.1 .*{message}"):
        loss.backward()


class TaskBlock(toys.ScalingBlock):
    """A block that runs the layer of the current task of two."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.ModuleList(nn.Linear(toys.WIDTH, toys.WIDTH) for _ in range(2))
        self.task = 0

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.tasks[self.task](super().forward(hidden))
        return result


def test_another_weight_of_the_same_shape_is_reported() -> None:
    # It decides the gradient of what it is multiplied with, and nothing else that is saved depends on it.
    model = stack(two(TaskBlock))
    wrap_blocks(model)
    loss = model(torch.ones(2, toys.WIDTH))
    layers: Any = model.layers
    for layer in layers:
        layer.task = 1
    with pytest.raises(
        SurgeryError,
        match=r"recomputing TaskBlock layers\.1 gave .*: a tensor of 6x6 float32 in tasks\.1.* such as its task",
    ):
        loss.backward()


class GatheringBlock(toys.ScalingBlock):
    """A block that, like FSDP2, frees a weight after use and puts the next in its place, but not in a backward."""

    reused = False

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = super().forward(hidden)
        first = torch.full((4096,), 0.5)
        hidden = hidden * first[: toys.WIDTH]
        if torch._C._current_graph_task_id() != -1:
            return hidden * torch.full((4096,), 2.0)[: toys.WIDTH]
        place = first.data_ptr()
        first.untyped_storage().resize_(0)
        others: list[Tensor] = []
        second = torch.full((4096,), 2.0)
        while second.data_ptr() != place and len(others) < 500:
            others.append(second)
            second = torch.full((4096,), 2.0)
        self.reused = second.data_ptr() == place
        return hidden * second[: toys.WIDTH]


def test_a_weight_in_the_memory_of_another_is_not_taken_for_it() -> None:
    model = stack(two(GatheringBlock))
    wrap_blocks(model)
    loss = model(torch.ones(2, toys.WIDTH))
    if not any(layer.reused for layer in model.modules() if isinstance(layer, GatheringBlock)):
        pytest.skip("memory that was freed is not given again")
    loss.backward()


def test_layers_without_a_size_are_refused() -> None:
    model, plain = stack(two(toys.LazySizeBlock)), stack(two(toys.LazySizeBlock))
    with pytest.raises(SurgeryError, match=r"layers\.0\.late\.weight has no size before the first forward"):
        wrap_blocks(model)
    for each in (model, plain):
        torch.manual_seed(1)
        each(torch.ones(2, toys.WIDTH))
    wrap_blocks(model)
    assert same(train(model), train(plain))


@pytest.mark.parametrize("kind", [toys.CompiledPartBlock, toys.ScriptedBlock])
def test_blocks_with_compiled_and_scripted_parts_are_checked(kind: Callable[[], nn.Module]) -> None:
    model, plain = stack(two(kind)), stack(two(kind))
    wrap_blocks(model)
    assert same(train(model), train(plain))


def test_a_drift_beside_a_scripted_part_is_reported() -> None:
    model = stack(two(toys.ScriptedBlock))
    wrap_blocks(model)
    train(model, steps=1)
    layers: Any = model.layers
    layers[0].scale = toys.DriftingBlock().scale
    with pytest.raises(SurgeryError, match=r"recomputing ScriptedBlock layers\.0 gave a different result"):
        train(model, steps=1)


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare sums as on a device that may not have computed them yet."""
    monkeypatch.setattr(digests, "_is_readable", lambda tensor: False)


def settled() -> toys.Stack:
    model = stack(lambda: [toys.DriftingBlock(size=0.0) for _ in range(3)])
    wrap_blocks(model, self_check="always")
    train(model, steps=FIRST_STEPS)
    return model


def drifting(model: toys.Stack, size: float = 0.1) -> None:
    layers: Any = model.layers
    layers[1].size = size


def test_what_can_be_read_is_reported_in_its_step() -> None:
    model = settled()
    drifting(model)
    with pytest.raises(
        SurgeryError, match=r"recomputing DriftingBlock layers\.1 gave .*: a tensor of 16x6 float32 in"
    ):
        train(model, steps=1)


@pytest.mark.usefixtures("as_on_a_device")
def test_what_a_device_compares_is_reported_in_the_next_step() -> None:
    model = settled()
    drifting(model)
    train(model, steps=1)
    with pytest.raises(SurgeryError, match=r"recomputing DriftingBlock layers\.1 gave .* of its magnitude"):
        train(model, steps=1)


@pytest.mark.usefixtures("as_on_a_device")
def test_all_sums_are_read_once_after_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = settled()
    read: list[int] = []

    def all_equal(pairs: Any) -> bool:
        read.append(len(pairs))
        return True

    monkeypatch.setattr(quick_check, "_all_equal", all_equal)
    train(model, steps=2)
    assert len(read) == 2
    assert min(read) >= 3 * 3


@pytest.mark.usefixtures("as_on_a_device")
def test_what_happens_once_is_reported_as_such() -> None:
    model = settled()
    drifting(model)
    train(model, steps=1)
    drifting(model, 0.0)
    with pytest.warns(SurgeryWarning, match=r"DriftingBlock layers\.1 gave other bits .* in the step before") as told:
        train(model, steps=1)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, steps=2)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("size", [1e-5, 1e-2])
def test_noise_is_looked_at_closely_from_then_on(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = stack(two(partial(toys.NoisyBlock, 0.0)))
    surgery = wrap_blocks(model, self_check="always")
    train(model, steps=FIRST_STEPS)
    layers: Any = model.layers
    layers[0].size = size
    train(model, steps=1)
    if size == 1e-2:
        with pytest.raises(SurgeryError, match=r"NoisyBlock layers\.0 .* it makes something else each time"):
            train(model, steps=1)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, steps=3)
    schedules = [forward.schedule for forward in surgery._forwards.values()]
    assert [schedule.due([]) for schedule in schedules] == ["close", "quick"]


def test_noise_on_a_processor_of_several_threads_is_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = stack(two(partial(toys.NoisyBlock, 0.0)))
    wrap_blocks(model, self_check="always")
    train(model, steps=FIRST_STEPS)
    layers: Any = model.layers
    layers[0].size = 1e-5
    train(model, steps=3)
    layers[0].size = 1e-2
    with pytest.raises(SurgeryError, match=r"NoisyBlock layers\.0"):
        train(model, steps=1)


@pytest.mark.usefixtures("as_on_a_device")
def test_a_backward_that_was_given_up_leaves_nothing_behind() -> None:
    model = settled()
    layers: Any = model.layers

    def give_up(gradient: Any) -> None:
        raise KeyboardInterrupt

    hook = layers[0].up.weight.register_hook(give_up)
    with pytest.raises(KeyboardInterrupt):
        train(model, steps=1)
    hook.remove()
    train(model, steps=2)
    assert not quick_check._waiting


def test_copies_and_pickles_settle_anew_which_tensors_count() -> None:
    model = stack(two(toys.ScalingBlock))
    wrap_blocks(model, self_check="always")
    train(model, steps=FIRST_STEPS + 1)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(train(other), train(model))


def test_what_a_run_saved_is_let_go_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = settled()
    seen: list[Any] = []
    digest = digests.Digest.of

    def noted(held: Any, *others: Any) -> Any:
        seen.extend(weakref.ref(tensor) for tensor in held if tensor.grad_fn is not None)
        return digest(held, *others)

    monkeypatch.setattr(digests.Digest, "of", noted)
    loss = model(torch.ones(2, toys.WIDTH)).sum()
    assert len(seen) > 3
    assert sum(reference() is not None for reference in seen) <= 3  # what one block hands to the next
    loss.backward()
    assert not [reference for reference in seen if reference() is not None]
