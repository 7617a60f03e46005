"""Run one call of a block under checkpointing: the first pass now, and the same again in the backward.

A `Computation` is what the checkpoint function is given to run; that function and its options are not known here.

1. Every gradient argument of the call is a positional argument of the computation, wherever it was in the call.
2. The recompute sees what the first pass saw: arguments, containers and written state as they were at entry.
3. The recompute leaves nothing behind on the modules of the block and in its arguments.
4. An exception of the first pass is raised after torch's checkpoint has returned. Raised through it, it would keep the
   hooks for saved tensors in place while somebody holds the traceback, and the next model would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from ckpt_surgery.runtime.selective.kept_results import KeptResults
from ckpt_surgery.runtime.self_check.check import SelfCheck
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.runtime.tools.error_policy import ErrorPolicy
from ckpt_surgery.runtime.tools.tensors import is_parameter, versions, without_graph
from ckpt_surgery.torch_names import StopRecomputationError

_PASSED_ON = (SurgeryError, torch.OutOfMemoryError, CheckpointError, StopRecomputationError)
"""Exceptions of a recompute that pass unchanged; by the last one, torch ends a recompute once it has all it needs."""


class Computation:
    """One call of `block`: the first run returns its results, later runs give torch what they save for the backward.

    `check` compares a recompute with the first run; `recomputed` is called before each. `error_policy` decides whether
    errors are raised or reported.
    """

    __slots__ = (
        *("__self__", "_arguments", "_call", "_check", "_failure", "_kept", "_originals", "_recomputed"),
        "error_policy",
    )

    def __init__(
        self,
        block: nn.Module,
        call: RecordedCall,
        arguments: Arguments,
        check: SelfCheck | None,
        kept: KeptResults | None,
        recomputed: Callable[[], None],
        error_policy: ErrorPolicy,
    ) -> None:
        self.__self__ = block
        self.error_policy = error_policy
        self._call = call
        self._check = check
        self._recomputed = recomputed
        self._kept = kept
        if kept is not None and check is not None:
            kept.show = check.note_inputs
        self._arguments: Arguments | None = arguments  # until the first pass
        self._originals: dict[int, Any] = {}  # by index: class and attributes of a tensor, or the parameter
        self._failure: BaseException | None = None

    def __call__(self, *given: Tensor) -> Any:
        """Run the block on `given`, in place of its recorded tensors, and return its results; None in a recompute.

        Raises SurgeryError if an argument has changed. `check_ended` raises the errors of the first pass.
        """
        if self._arguments is None:
            return self._run_again(given)
        arguments, self._arguments = self._arguments, None
        self._call.tensors = []
        try:
            return self._first_pass(arguments, given)
        except BaseException as error:
            self._failure = error
            return None

    def check_ended(self) -> None:
        """Raise the error of the first pass, if there was one."""
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure

    def _first_pass(self, arguments: Arguments, given: tuple[Tensor, ...]) -> Any:
        if not torch.is_grad_enabled():
            with self.error_policy:
                raise SurgeryError(
                    f"{self._call.signature.place} is checkpointed by a function that runs it without gradients, as "
                    "reentrant checkpointing does: give torch.utils.checkpoint.checkpoint with use_reentrant=False"
                )
        special = ((i, t) for i, t in enumerate(given) if type(t) is not Tensor or t._base is not None or vars(t))
        self._originals = {i: t if is_parameter(t) else (type(t), dict(vars(t))) for i, t in special}
        before = versions(given)
        with self.error_policy:
            self._call.begin(watching=self._check is not None)
        try:
            with self._call.noting_hooks():
                output = self._run_checked(*arguments)
        except RuntimeError:  # as from a gradient that the block itself takes of what it wrote
            with self.error_policy:
                self._refuse_written(arguments, given, before)
            raise
        with self.error_policy:
            self._call.end()
            self._refuse_written(arguments, given, before)
            if self._kept is not None:
                self._kept.end(tensors(output))
        return output

    def _run_checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._check is None and self._kept is None:
            return self._call.forward(*args, **kwargs)
        checking = nullcontext() if self._check is None else self._check.forward()
        with checking, nullcontext() if self._kept is None else self._kept.forward():
            return self._call.forward(*args, **kwargs)

    def _refuse_written(self, arguments: Arguments, given: Sequence[Tensor], before: Sequence[int]) -> None:
        if (now := versions(given)) == before:
            return
        signature = self._call.signature
        written = next(tensor for tensor, old, new in zip(given, before, now, strict=True) if old != new)
        raise SurgeryError(
            f"{signature.place} cannot be recomputed: it modified its argument "
            f"{signature.holder_of(written, *arguments)} in place; leave the block out, or give it a copy"
        )

    def _run_again(self, given: tuple[Tensor, ...]) -> None:
        self._recomputed()
        # detached, so that gradients and hooks inside do not reach tensors outside. Offload and other hooks for saved
        # tensors return plain tensors: parameters and subclasses are put back, also for the self-check
        given = tuple([_detached(t, self._originals.get(i)) for i, t in enumerate(given)])
        try:
            if self._check is None:
                self._recompute(given)
            else:
                self._check.recompute(partial(self._recompute, given))
        except _PASSED_ON:
            raise
        except Exception as error:
            with self.error_policy:
                raise SurgeryError(
                    f"the recompute of {self._call.signature.place} failed where its forward did not "
                    f"({type(error).__name__}: {error}): it depends on something that has changed since; keep that as "
                    "it was until the backward, or leave the block out"
                ) from error
            raise
        finally:
            if self._check is not None:
                for leaf in (tensor for tensor in given if tensor.is_leaf and not is_parameter(tensor)):
                    leaf.register_hook(self._refuse_gradient)  # type: ignore[no-untyped-call]

    def _recompute(self, given: tuple[Tensor, ...]) -> None:
        restoring = None
        with self.error_policy:
            self._call.refuse_written()
            restoring = self._call.restoring()
        args, kwargs = self._call.rebuilt(given)
        if self.error_policy.report is not None:
            restoring = self._tolerating_hooks(restoring or nullcontext())
        kept = None if self.error_policy.reported else self._kept  # it may have been reported as written to
        if restoring is None and kept is None:
            self._call.forward(*args, **kwargs)  # torch collects what it needs on the way
            return
        with restoring or nullcontext(), nullcontext() if kept is None else kept.recompute():
            self._call.forward(*args, **kwargs)

    @contextmanager
    def _tolerating_hooks(self, restoring: AbstractContextManager[None]) -> Iterator[None]:
        """Restore inside, and report errors of the script's hooks, which may fail because they run a second time."""
        with restoring, self._call.tolerating_hooks(self._hook_failed):
            yield

    def _hook_failed(self, error: Exception) -> None:
        if isinstance(error, _PASSED_ON):
            raise error
        with self.error_policy:
            raise SurgeryError(
                f"a hook of the script inside of {self._call.signature.place} failed as it ran again in the recompute "
                f"({type(error).__name__}: {error}): put it on the block itself, or leave the block out"
            ) from error

    def _refuse_gradient(self, gradient: Tensor) -> None:
        with self.error_policy:
            raise SurgeryError(
                f"a loss reaches what the recompute of {self._call.signature.place} has left outside of it, in a list "
                "or by a hook: without checkpointing that is not there; empty it before each forward, or have the "
                "block return what the loss needs"
            )


def _detached(tensor: Tensor, original: Any) -> Tensor:
    """Return a tensor without graph and hooks, with its original class and attributes, or the original parameter."""
    if original is None:
        return without_graph(tensor)
    if isinstance(original, Tensor):
        return original
    kind, attributes = original  # hooks for saved tensors may return a plain tensor
    detached = without_graph(tensor if type(tensor) is kind else tensor.as_subclass(kind))
    vars(detached).update(attributes)
    return detached
