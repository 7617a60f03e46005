"""The tensors that somebody else may have seen inside a block: arguments and results of submodules with hooks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.runtime.recompute_mode import NOTHING
from ckpt_surgery.runtime.tools.containers import tensors

Place = tuple[Any, ...]
"""Where a tensor can be reached: in the arguments, in an attribute of a module, or in a call that a hook saw."""


def watching(
    modules: Collection[nn.Module], held: Callable[[Tensor], Any]
) -> AbstractContextManager[dict[Place, Any]]:
    """Note the tensors among the arguments and results of modules at which somebody else may look, as `held`."""
    return _watched_calls(modules, held) if modules else NOTHING


@contextmanager
def _watched_calls(modules: Iterable[nn.Module], held: Callable[[Tensor], Any]) -> Iterator[dict[Place, Any]]:
    seen: dict[Place, Any] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = len({place[1] for place in seen if place[0] is module})
        for index, tensor in enumerate(tensors((args, kwargs, output))):
            seen[(module, call, index)] = held(tensor)

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
