"""Tell whether a model can train with its parameters where they are: split over devices, or offloaded.

Nothing is moved, and what the ranks exchange (gradients, losses) is not looked at.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ckpt_surgery.distributed.structure import check_module
from ckpt_surgery.errors import DistributedError, PlacementError
from ckpt_surgery.text import size as in_bytes
from ckpt_surgery.undo import UndoableHooks

Placed = dict[str, list[nn.Parameter]]
"""Parameters by the device that they are on."""

_ALONE = "in one process (python train.py instead of torchrun)"
_SHARDED = "FSDP, which shards it over ranks (torch.distributed.fsdp.fully_shard)"


def check_placement(model: nn.Module, *, allow_split: bool = False) -> None:
    """Return if `model` can be trained here with its parameters where they are, and raise if not.

    Two things are refused, whatever `model.training` is:

    - In any process, a trainable parameter on the meta device. accelerate keeps offloaded weights there (`device_map`
      with "disk", or with "cpu" beside an accelerator; `cpu_offload`; `disk_offload`) and loads them for each forward
      only, so the backward succeeds and their gradients stay None. Frozen parameters may be offloaded: the gradients
      of the others are right.
    - In a world of several ranks, parameters on several devices, by where they are or by `hf_device_map`, which
      `device_map="auto"` leaves on the model, also inside wrappers. The ranks would train on each other's devices.
      Frozen ones count; buffers do not, nor do DTensors (FSDP2, tensor parallelism), which their mesh places.

    The world is the default process group or, before there is one, what the launcher set: WORLD_SIZE and RANK.

    transformers' Trainer refuses a part of this, through accelerate: in a world of several ranks, every
    `hf_device_map` of more than one entry, also if all name one device. It passes a split model without that
    attribute and, in one process, offloaded parameters that never train. Nobody checks a plain loop.

    Args:
        model: the model, also inside wrappers.
        allow_split: accept parameters on several devices. Only do so if no two ranks share an accelerator, as for
            DistributedDataParallel around models that each have several devices to themselves.

    Raises:
        PlacementError: on each rank for itself; it says what is on which device, and what a whole copy takes.
        DistributedError: `model` is not a module.
    """
    check_module(model, "check_placement")
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    away = [name for name, parameter in trainable if parameter.is_meta]
    if away:
        why = (
            f"{len(away)} of its {len(trainable)} trainable parameters, '{away[0]}' first, are offloaded or never "
            "loaded, and the gradient of an offloaded parameter stays None although the backward succeeds"
        )
        alone = "" if _world()[1] == 1 else f" {_ALONE}"
        way = f"what is offloaded frozen, with requires_grad_(False), and the rest trained{alone}"
        raise PlacementError(_refusal(model, why, _placed(model, model.parameters()), [way, _SHARDED]))
    if allow_split or _world()[1] == 1:
        return
    placed = _placed(model, (parameter for parameter in model.parameters() if not hasattr(parameter, "device_mesh")))
    if len(placed) > 1:
        why = "its parameters lie on several devices, and the ranks would train on each other's"
        shared = "allow_split=True, where no two ranks share an accelerator"
        raise PlacementError(_refusal(model, why, placed, [f"the split model {_ALONE}", _SHARDED, shared]))


class PlacementGuard(UndoableHooks):
    """A check of a model's placement at its first training forward, until `undo` or for the length of a `with`."""


def guard_placement(model: nn.Module, *, allow_split: bool = False) -> PlacementGuard:
    """Have every training forward of `model` begin with `check_placement`.

    A forward is a training forward if `model.training` is set, gradients are on and a parameter requires one;
    others pass. Once the check has passed it is made again only in a world of another size: parameters that are
    moved, unfrozen or added later need `check_placement`, or another guard. The model may be inside
    DistributedDataParallel or PEFT, or be wrapped later. For wrappers that call `model.forward`, past its hooks, the
    check is also made before the model's direct children run. Copies and pickles of the model keep it for good.

    While torch compiles nothing is checked: guard what `torch.compile` returns, not what it is given. After
    `model.compile()`, which returns nothing, call `check_placement` instead.

    Args:
        model: the model whose forwards are checked.
        allow_split: as in `check_placement`.

    Returns:
        The guard; `undo()` ends it.

    Raises:
        DistributedError: `model` is not a module. A training forward raises PlacementError as `check_placement` does,
            before anything is computed.
    """
    check_module(model, "guard_placement")
    hooks = [(model, _Hook(None, allow_split)), *((child, _Hook(model, allow_split)) for child in model.children())]
    return PlacementGuard(module.register_forward_pre_hook(hook) for module, hook in hooks)


class _Hook:
    """A forward pre-hook that checks `whole`, or else the called module, until it passes."""

    def __init__(self, whole: nn.Module | None, allow_split: bool) -> None:
        # a child that held its parent would keep a deleted model in memory until the next garbage collection
        self._whole = None if whole is None else weakref.ref(whole)
        self._allow_split = allow_split
        self._passed_in = 0

    def __call__(self, module: nn.Module, _: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        ranks = _world()[1]
        if ranks == self._passed_in:
            return
        whole = None if self._whole is None else self._whole()
        checked = module if whole is None else whole
        if any(parameter.requires_grad for parameter in checked.parameters()):
            check_placement(checked, allow_split=self._allow_split)
            self._passed_in = ranks

    def __reduce__(self) -> tuple[type[_Hook], tuple[None, bool]]:
        """Let each hook of a copy or a pickle check its own module: a child alone must not take the model along."""
        return _Hook, (None, self._allow_split)


def local_device_map() -> dict[str, int | str]:
    """Return the `device_map` of `from_pretrained` that puts a whole copy of the model on this rank's own device.

    Returns:
        `{"": index}` with an accelerator, `{"": "cpu"}` without. The index is LOCAL_RANK; without it the device that
        `init_process_group` was given (`device_id`), the only one there is, or in a world of one rank the current one.
        (accelerate takes 0 on every rank of a process group without LOCAL_RANK.)

    Raises:
        DistributedError: nothing says which of several accelerators is this rank's, or more ranks run on this machine
            than it has accelerators.
    """
    count = torch.accelerator.device_count()
    if not count:
        return {"": "cpu"}
    rank, ranks = _world()
    local = _number("LOCAL_RANK")
    here = max(_number("LOCAL_WORLD_SIZE") or 1, (local or 0) + 1)
    if here > count:
        raise DistributedError(
            f"{here} or more ranks run on this machine, and rank {rank} sees {count} accelerators: start at most "
            f'{count} ranks on it or, where the launcher shows each rank only its own, load with device_map={{"": 0}}.'
        )
    if local is not None:
        return {"": local}
    if ranks == 1:
        return {"": torch.accelerator.current_device_index()}
    if count == 1:
        return {"": 0}
    group = dist.group.WORLD if dist.is_available() else None
    bound = None if group is None else group.bound_device_id
    if bound is None or bound.index is None:
        raise DistributedError(
            f"Nothing says which of {count} accelerators belongs to rank {rank} of {ranks}: set LOCAL_RANK to the "
            "number of this rank on its machine (under SLURM that is SLURM_LOCALID)."
        )
    return {"": bound.index}


def _world() -> tuple[int, int]:
    """Return this rank and the number of ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return _number("RANK") or 0, _number("WORLD_SIZE") or 1


def _number(variable: str) -> int | None:
    """Read a number from the environment; None for -1, by which some launchers mean "not distributed"."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else None


def _placed(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Placed:
    """Group the parameters by their devices or, if that is one device, by those that `hf_device_map` names."""
    # the device of each parameter in the innermost `hf_device_map` that has it
    planned: dict[int, str] = {}
    for module in model.modules():
        device_map: Mapping[str, Any] = vars(module).get("hf_device_map") or {}
        for name, parameter in module.named_parameters() if device_map else ():
            while name and name not in device_map:
                name = name.rpartition(".")[0]
            if name in device_map:
                planned[id(parameter)] = _name(device_map[name])
    real: Placed = {}
    mapped: Placed = {}
    for parameter in parameters:
        plan = planned.get(id(parameter))
        offloaded = plan in ("cpu", "disk")
        place = f"meta, offloaded to {plan}" if parameter.is_meta and offloaded else _name(parameter.device)
        real.setdefault(place, []).append(parameter)
        # an entry for the host is outdated if the parameter is elsewhere: its hooks are gone
        mapped.setdefault(place if plan is None or offloaded else plan, []).append(parameter)
    return real if len(real) > 1 else mapped


def _name(device: int | str | torch.device) -> str:
    """Return one name for each device or "disk": if the current one is 0, "cuda" and 0 are both "cuda:0"."""
    if isinstance(device, int):
        kind = torch.accelerator.current_accelerator()
        return f"{'cuda' if kind is None else kind.type}:{device}"
    if device == "disk":
        return "disk"
    device = torch.device(device)
    if device.type in ("cpu", "meta"):
        return device.type
    if ":" in str(device):
        return str(device)
    return f"{device}:{torch.accelerator.current_device_index() if torch.accelerator.device_count() else 0}"


def _refusal(model: nn.Module, why: str, placed: Placed, ways: Sequence[str]) -> str:
    """Say what is wrong, which device holds what, and the ways out: a whole copy on each device, or `ways`."""
    rank, ranks = _world()
    places = "; ".join(
        f"{place}: {sum(p.numel() for p in parameters):,} parameters, {in_bytes(sum(p.nbytes for p in parameters))}"
        for place, parameters in placed.items()
    )
    if ranks == 1:
        here, whole = "here", "all of it on one device"
    else:
        here = f"on rank {rank} of {ranks}"
        whole = 'a whole copy on the own device of each rank, device_map=local_device_map() ({"": local_rank}) or none'
    total = sum(parameter.nbytes for parameter in model.parameters())
    trainable = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    cost = (  # Adam keeps two moments of a parameter's shape and dtype
        f"{in_bytes(total + 3 * trainable)}, of which {in_bytes(total)} for parameters, {in_bytes(trainable)} for "
        f"gradients and {in_bytes(2 * trainable)} for the moments of Adam"
    )
    every = "; ".join([f"{whole} ({cost})", *ways])
    problem = f"{type(model).__name__} cannot be trained {here} with its parameters where they are: {why} ({places})."
    return f"{problem} Ways out: {every}."
