"""Hooks that belong to one model, and the handling of errors in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ckpt_surgery.torch_names import SELECTIVE_MODES, disable_current_modes, dispatch_modes, dispatch_stack_length


class HookErrors:
    """The handling of errors in hooks, which must not end the training that the hooks watch.

    The first error goes to `failed` and stops all hooks, unless `failed` returns True. Every ModelHook that is made
    inside `kept` also runs inside it, on any thread. Errors of the kinds `raised` are meant for the training.
    """

    def __init__(self, failed: Callable[[Exception], bool], raised: tuple[type[Exception], ...]) -> None:
        self.ended = False
        self._failed = failed
        self._raised = raised

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep errors of the body from the training, and its operators from the training's selective policy."""
        before, selective = (_KEPT_BY.errors, _KEPT_BY.selective), is_selective()
        _KEPT_BY.errors, _KEPT_BY.selective = self, selective
        try:
            with disable_current_modes() if selective else nullcontext():
                yield
        except self._raised:
            raise
        except Exception as error:
            if not self.ended:
                self.ended = True
                self.ended = not self._failed(error)
        finally:
            _KEPT_BY.errors, _KEPT_BY.selective = before


def is_selective() -> bool:
    """Tell whether the code that runs is checkpointed with a selective policy of torch."""
    modes = dispatch_modes() if dispatch_stack_length() else ()
    return _KEPT_BY.selective or any(isinstance(mode, SELECTIVE_MODES) for mode in modes)


class _KeptBy(threading.local):
    errors: HookErrors | None = None
    selective = False


_KEPT_BY = _KeptBy()
"""Not a ContextVar: with Python 3.11.7 and torch 2.13, one that hooks of a forward set was gone when they reset it."""


class ModelHook:
    """A hook on modules, parameters or the graph of one model that only observes, and leaves gradients as they are.

    What it raises goes to `errors`, by default to those in whose `kept` it is made; without any, to the caller of the
    model. In copies and pickles of the model, a hook that does nothing takes its place.
    """

    def __init__(self, function: Callable[..., Any], errors: HookErrors | None = None) -> None:
        self._function = function
        self._errors = errors or _KEPT_BY.errors

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._errors is None:
            return self._function(*args, **kwargs)
        if torch.compiler.is_compiling() or self._errors.ended:  # compiled code is not watched
            return None
        with self._errors.kept():
            return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelHook, (nothing,)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing, in place of the hook, in copies of a model."""
