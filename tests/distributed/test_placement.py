"""Devices for training: split and offloaded models and the guard, in one process here and on two ranks in the script.

Where accelerate offloads parameters its faults as released are shown, and the check's refusals.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from accelerate import cpu_offload, disk_offload, dispatch_model  # type: ignore[import-untyped]
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from ckpt_surgery.distributed.placement import check_placement, guard_placement, local_device_map
from ckpt_surgery.errors import DistributedError, PlacementError
from tests.distributed.placement_script import SIZE, SPLIT, Pair, tiny_llama
from tests.rank_cases import Results, case_results

pytestmark = pytest.mark.both

LAUNCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
VALUES = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear a launcher's environment: these tests run in one process."""
    for variable in LAUNCH:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of two ranks before there is a process group."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")


@pytest.fixture
def start_group() -> Iterator[Callable[..., None]]:
    """Start a process group of ranks that are not there."""

    def start(rank: int, size: int) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def accelerators(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let torch report this number of accelerators."""

    def see(count: int, current: int = 0) -> None:
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))

    return see


@pytest.mark.parametrize("call", [check_placement, guard_placement])
def test_what_is_no_module_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(DistributedError, match=f"^{call.__name__}: the model is of type int: give a torch.nn.Module$"):
        call(3)


def test_parameters_that_were_never_loaded_are_refused() -> None:
    with torch.device("meta"):
        model = Pair()
    with pytest.raises(PlacementError, match="never loaded"):
        check_placement(model)
    check_placement(model.to_empty(device="cpu"))


ONE_DEVICE: list[dict[str, Any]] = [
    {"": "cpu"},
    {"a": 1, "b": 1},
    {"a": "cuda", "b": 0},
    {"a": "cuda:0", "b": torch.device("cuda", 0)},
    {"a": "cpu", "b": "disk"},  # what is left of a map when its hooks are gone: both are in host memory
    {"": 0, "nothing_there": 1},
]
SEVERAL: list[dict[str, Any]] = [
    SPLIT,
    {"a": 0, "b": "cpu"},
    {"a": 0, "b": "disk"},
    {"a": "cuda", "b": torch.device("cuda", 1)},
    {"": 0, "b": 1},
    {"a": 0, "b.weight": 0, "b.bias": 1},
]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("device_map", ONE_DEVICE)
def test_a_map_to_one_device_passes_before_there_is_a_group(device_map: dict[str, Any]) -> None:
    check_placement(Pair(device_map))


@pytest.mark.parametrize("device_map", SEVERAL)
def test_a_split_model_is_for_one_process_alone(device_map: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Pair(device_map)
    for alone in ("", "1", "-1"):
        monkeypatch.setenv("WORLD_SIZE", alone)
        check_placement(model)
    with guard_placement(model):
        model(VALUES).sum().backward()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(PlacementError, match="rank 1 of 2"):
        check_placement(model)


@pytest.mark.usefixtures("two_ranks")
def test_where_parameters_are_counts_before_a_map() -> None:
    model = Pair({"": 0})
    check_placement(model)
    model.b.requires_grad_(False).to("meta")
    with pytest.raises(PlacementError, match="cpu: 20 parameters, 80 B; meta: 20 parameters, 80 B"):
        check_placement(model)


def test_sharded_parts_may_lie_elsewhere_than_the_rest(start_group: Callable[..., None]) -> None:
    start_group(1, 2)
    model = Pair()
    model.b.requires_grad_(False).to("meta")
    with pytest.raises(PlacementError):
        check_placement(model)
    fully_shard(model.b)
    check_placement(model)


@pytest.mark.usefixtures("two_ranks")
def test_the_innermost_map_counts_whatever_is_around_it() -> None:
    outer = nn.Sequential(Pair({"": 0}), nn.Sequential(Pair({"": 0})))
    check_placement(outer)
    outer[1][0].hf_device_map = {"": 1}  # type: ignore[index]
    with pytest.raises(PlacementError):
        check_placement(outer)
    outer[1][0].hf_device_map = {"": 0}  # type: ignore[index]
    outer.hf_device_map = {"": 1}  # type: ignore[assignment]
    check_placement(outer)


@pytest.mark.usefixtures("two_ranks")
def test_cuda_without_an_index_is_the_current_device(accelerators: Callable[..., None]) -> None:
    accelerators(2, current=1)
    check_placement(Pair({"a": "cuda", "b": 1}))
    with pytest.raises(PlacementError):
        check_placement(Pair({"a": "cuda", "b": 0}))


@pytest.mark.usefixtures("two_ranks")
def test_the_refusal_of_a_split_names_devices_costs_and_ways_out() -> None:
    model = Pair(SPLIT)
    model.a.requires_grad_(False)
    with pytest.raises(PlacementError) as caught:
        check_placement(model)
    said = str(caught.value)
    assert "(cuda:0: 20 parameters, 80 B; cuda:1: 20 parameters, 80 B)" in said
    assert "400 B, of which 160 B for parameters, 80 B for gradients and 160 B for the moments of Adam" in said
    assert 'local_device_map() ({"": local_rank})' in said
    assert "python train.py instead of torchrun" in said
    assert "fully_shard" in said
    assert "allow_split=True" in said


@pytest.mark.usefixtures("two_ranks")
def test_allow_split_accepts_a_split_and_no_offloading() -> None:
    model = Pair(SPLIT)
    check_placement(model, allow_split=True)
    with guard_placement(model, allow_split=True):
        model(VALUES)
    model.a.to("meta")
    with pytest.raises(PlacementError, match="2 of its 4"):
        check_placement(model, allow_split=True)


def test_a_group_outweighs_the_environment(start_group: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    start_group(0, 1)
    check_placement(Pair(SPLIT))


def test_a_guard_that_passed_checks_again_when_a_group_starts(start_group: Callable[..., None]) -> None:
    model = Pair(SPLIT)
    guard_placement(model)
    model(VALUES)
    start_group(2, 4)
    with pytest.raises(PlacementError, match="rank 2 of 4"):
        model(VALUES)


@pytest.mark.usefixtures("two_ranks")
def test_a_guard_checks_until_it_has_passed_and_then_no_more() -> None:
    model = Pair(SPLIT)
    guard_placement(model)
    for _ in range(2):
        with pytest.raises(PlacementError):
            model(VALUES)
    model.hf_device_map = {"": 0}
    model(VALUES)
    model.hf_device_map = SPLIT
    model(VALUES)


@pytest.mark.usefixtures("two_ranks")
def test_a_guard_ends_with_remove_or_its_with_and_leaves_no_hook() -> None:
    model = Pair(SPLIT)
    keys = list(model.state_dict())
    guard = guard_placement(model)
    assert list(model.state_dict()) == keys
    guard.undo()
    guard.undo()
    model(VALUES)
    with pytest.raises(PlacementError), guard_placement(model):
        model(VALUES)
    assert not any(module._forward_pre_hooks for module in model.modules())


class Around(nn.Module):
    """A wrapper that bypasses the hooks of the wrapped model, as PEFT's did."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.inner.forward(values)
        return result


@pytest.mark.usefixtures("two_ranks")
def test_a_wrapper_that_goes_past_the_hooks_does_not_escape_the_guard() -> None:
    model = Pair(SPLIT)
    with guard_placement(model), pytest.raises(PlacementError, match="Pair"):
        Around(model)(VALUES)
    Around(model)(VALUES)


def pickled(model: nn.Module) -> nn.Module:
    result: nn.Module = pickle.loads(pickle.dumps(model))
    return result


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_has_its_own_guard(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    model = Pair(SPLIT)
    guard = guard_placement(model)
    copied = duplicate(model)
    guard.undo()
    model(VALUES)
    with pytest.raises(PlacementError):
        copied(VALUES)
    copied.hf_device_map = {"": 0}  # type: ignore[assignment]
    copied(VALUES)


def test_a_guarded_model_goes_when_its_last_owner_does() -> None:
    model = Pair()
    guard_placement(model)
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("two_ranks")
def test_a_guard_on_a_compiled_model_checks_and_one_inside_is_silent() -> None:
    model = Pair(SPLIT)
    compiled = cast(nn.Module, torch.compile(model, backend="eager", fullgraph=True))
    with guard_placement(model):
        compiled(VALUES)
    with guard_placement(compiled), pytest.raises(PlacementError):
        compiled(VALUES)


def test_the_local_rank_is_the_device(accelerators: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    accelerators(4, current=2)
    assert local_device_map() == {"": 2}
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert local_device_map() == {"": 3}


@pytest.mark.usefixtures("two_ranks")
def test_without_an_accelerator_the_map_is_the_cpu(
    accelerators: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerators(0)
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert local_device_map() == {"": "cpu"}


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("variables", [{"LOCAL_RANK": "2"}, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}])
def test_more_ranks_than_accelerators_are_refused_on_every_rank(
    variables: dict[str, str], accelerators: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerators(2)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(DistributedError, match="3 or more ranks run on this machine"):
        local_device_map()
    accelerators(3)
    assert local_device_map() == {"": int(variables["LOCAL_RANK"])}


def test_without_a_local_rank_the_device_of_the_group_counts(
    accelerators: Callable[..., None], start_group: Callable[..., None]
) -> None:
    start_group(5, 8)
    accelerators(1)
    assert local_device_map() == {"": 0}
    accelerators(4)
    with pytest.raises(DistributedError, match="which of 4 accelerators belongs to rank 5 of 8: set LOCAL_RANK"):
        local_device_map()
    dist.group.WORLD.bound_device_id = torch.device("cuda", 1)  # type: ignore[union-attr]
    assert local_device_map() == {"": 1}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Launch the ranks once, in an environment of another world than the group; return the results by case."""
    folder = tmp_path_factory.mktemp("placement")
    return case_results("tests.distributed.placement_script", folder, SIZE, WORLD_SIZE="7")


FINE = [
    "whole",
    "whole in ddp",
    "buffer elsewhere",
    "fsdp",
    "tensor parallel",
    "split on purpose",
]
REFUSED = {
    "split": "cuda:1: 20 parameters, 80 B",
    "split in ddp": "cuda:1: 20 parameters, 80 B",
    "frozen part elsewhere": "meta: 30 parameters, 120 B",
}


@pytest.mark.parametrize("case", FINE)
def test_ranks_train_models_that_lie_on_one_device_each(results: Results, case: str) -> None:
    for rank in results[case]:
        assert set(rank.values()) == {""}


@pytest.mark.parametrize("case", REFUSED)
def test_every_rank_refuses_a_split_model_wherever_the_guard_is(results: Results, case: str) -> None:
    for number, rank in enumerate(results[case]):
        assert len(rank) == 4
        for said in rank.values():
            assert f"rank {number} of {SIZE}" in said
            assert REFUSED[case] in said


def test_on_ranks_a_split_model_may_be_used_and_not_trained(results: Results) -> None:
    for *used, trained in results["inference"]:
        assert used == ["", "", ""]
        assert "cannot be trained" in trained


IDS = torch.arange(16).reshape(2, 8)
DISK_MAP = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.layers.2": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


def on_disk(model: LlamaForCausalLM, folder: Path) -> LlamaForCausalLM:
    """Offload the second and third of three layers: 18 of 30 parameters."""
    return dispatch_model(model, dict(DISK_MAP), main_device="cpu", offload_dir=str(folder))


def loss(model: nn.Module) -> Tensor:
    result: Tensor = model(input_ids=IDS, labels=IDS).loss
    return result


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    loss(model).backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def missing(actual: dict[str, Tensor | None]) -> list[str]:
    return [name for name, gradient in actual.items() if gradient is None]


def offloaded(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.is_meta]


OFFLOADS: dict[str, tuple[int, Callable[[LlamaForCausalLM, Path], LlamaForCausalLM]]] = {
    "two layers on disk": (18, on_disk),
    "all in host memory": (30, lambda model, _: cpu_offload(model, torch.device("cpu"))),
    "all on disk": (30, lambda model, folder: disk_offload(model, str(folder), torch.device("cpu"))),
}


@pytest.mark.parametrize("case", OFFLOADS)
def test_offloaded_parameters_have_no_gradient_and_are_refused(case: str, tmp_path: Path) -> None:
    count, offload = OFFLOADS[case]
    model = offload(tiny_llama(), tmp_path)
    without = missing(gradients(model))
    assert len(without) == count
    assert without == offloaded(model)
    with pytest.raises(PlacementError, match=f"{count} of its 30 trainable parameters"):
        check_placement(model)
    with guard_placement(model):
        with pytest.raises(PlacementError, match=f"{count} of its 30 trainable parameters"):
            loss(model)
        with torch.no_grad():
            assert torch.equal(loss(model), loss(tiny_llama()))
    check_placement(tiny_llama())


def test_the_refusal_names_the_first_parameter_the_places_and_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(PlacementError) as caught:
        check_placement(on_disk(tiny_llama(), tmp_path))
    said = str(caught.value)
    assert said.startswith("LlamaForCausalLM cannot be trained here with its parameters where they are")
    assert "'model.layers.1.self_attn.q_proj.weight' first" in said
    # A layer has 2,592 elements of 4 bytes; the embedding, the head and the last norm have 2,064.
    assert "(cpu: 4,656 parameters, 18.2 KiB; meta, offloaded to disk: 5,184 parameters, 20.2 KiB)" in said
    assert "requires_grad_(False)" in said
    assert "FSDP" in said
    assert "torchrun" not in said


def test_the_guard_stops_a_trainer_that_would_leave_offloaded_layers(tmp_path: Path) -> None:
    def train(model: LlamaForCausalLM) -> int:
        """Train for two steps and count the parameters that moved."""
        before = {name: parameter.clone() for name, parameter in model.named_parameters() if not parameter.is_meta}
        arguments = TrainingArguments(
            str(tmp_path / "out"),
            max_steps=2,
            learning_rate=0.01,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=[{"input_ids": IDS[0], "labels": IDS[0]}] * 16).train()
        after = dict(model.named_parameters())
        return sum(not torch.equal(value, after[name]) for name, value in before.items())

    assert train(tiny_llama()) == 30
    model = on_disk(tiny_llama(), tmp_path / "offloaded")
    assert train(model) == 12
    guard_placement(model)
    with pytest.raises(PlacementError):
        train(model)


def frozen(model: LlamaForCausalLM) -> LlamaForCausalLM:
    model.model.layers[1:].requires_grad_(False)
    return model


def adapted(model: LlamaForCausalLM, layers: Sequence[int] = (0,)) -> nn.Module:
    torch.manual_seed(0)
    chosen = list(layers)
    options = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], layers_to_transform=chosen, init_lora_weights=False)
    return get_peft_model(model, options)


@pytest.mark.parametrize("checkpointing", [None, True])
@pytest.mark.parametrize(("prepare", "trained"), [(frozen, 12), (adapted, 4)])
def test_beside_frozen_offloaded_layers_the_others_train_rightly(
    prepare: Callable[[LlamaForCausalLM], nn.Module], trained: int, checkpointing: bool | None, tmp_path: Path
) -> None:
    expected = gradients(prepare(tiny_llama()))
    base = tiny_llama() if prepare is adapted else frozen(tiny_llama())
    model: Any = prepare(on_disk(base, tmp_path))
    assert len(offloaded(model)) == 18
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        model.enable_input_require_grads()
    with guard_placement(model):
        actual = gradients(model)
    assert missing(actual) == missing(expected)
    assert len(actual) - len(missing(actual)) == trained
    for name, gradient in actual.items():
        assert gradient is None or torch.allclose(gradient, expected[name], atol=1e-6)  # type: ignore[arg-type]


def test_adapters_on_offloaded_layers_are_refused(tmp_path: Path) -> None:
    model = adapted(on_disk(tiny_llama(), tmp_path), [0, 1])
    with pytest.raises(PlacementError, match="4 of its 8 trainable parameters"):
        check_placement(model)
