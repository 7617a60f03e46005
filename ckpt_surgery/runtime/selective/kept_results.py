"""Keep results of one block call by a policy: record them in the forward, and return them in the recompute.

torch's own selective checkpointing returns a kept result once, keeps nothing of operators that write in place, and
does not advance generators past operators that it skips. Here

1. a result can be used again: by a second backward, and by further runs of the self-check;
2. what an operator draws in place, as dropout does on a CPU, is kept as a copy;
3. after a kept operator that draws, generators are where the forward left them;
4. an operator that gets other shapes or numbers than in the forward, or whose result was written to since, is refused
   by name. The self-check compares its inputs, because a kept result would hide any difference before it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.flops import flops_of
from ckpt_surgery.runtime.selective.operator_result import OperatorResult, alias_of, memory_of, written_values
from ckpt_surgery.runtime.selective.policies import (
    ROUTER,
    Choice,
    OperatorRole,
    Selector,
    arguments_read,
    draws,
    in_words,
    is_mutable,
    operator_name,
)
from ckpt_surgery.runtime.selective.replay import BY_MODE, OTHER, Replay, form_of
from ckpt_surgery.runtime.selective.save_policy import CountedResult, KeptOfCall, SavePolicy
from ckpt_surgery.runtime.selective.watched_operators import Shortcuts, Watching
from ckpt_surgery.runtime.tools.rng import set_torch_states, torch_states
from ckpt_surgery.runtime.tools.tensors import changing_saved, version, versions
from ckpt_surgery.torch_names import TorchDispatchMode, tracing_context, tree_leaves

_ALIASING = "aten::_unsafe_view"
"""The operator that makes a tensor of the same memory with a version counter of its own."""


class KeptResults:
    """The results that the `policy` of a surgery keeps of one call of a block until its recompute.

    `place` names the block in messages. `show`, if set, is called in each run of the block with the inputs of
    operators whose results are kept. With `moves`, what is kept is offloaded with the inputs of the block.
    """

    def __init__(
        self, policy: SavePolicy, block: str, place: str, *, moves: bool = False, shortcuts: Shortcuts = ()
    ) -> None:
        self.policy = policy
        self._moves = moves
        self._shortcuts = shortcuts
        self._block = block
        self._place = place
        self.show: Callable[[Iterable[Tensor]], None] | None = None
        self.recomputing = 0  # recomputes that run now, also inside the forward, for a backward in it
        self._results: dict[Any, list[OperatorResult]] = {}
        self._storages: dict[int, OperatorResult] = {}
        self.ended = False  # whether the forward has
        self._sequence: list[_WatchedCall | None] | None = None
        self._runs_all = False
        self._counted: KeptOfCall | None = None

    def forward(self) -> AbstractContextManager[Any]:
        """Return a context for the forward, in which results are kept."""
        self.policy.begin(self._block)
        if not self.policy.by_calls:
            return _KeepingMode(self)
        self._sequence = []
        return Watching(_KeepingWatcher(self, self._sequence), self._shortcuts)

    def recompute(self) -> AbstractContextManager[Any]:
        """Return a context for the recompute, which gets the kept results. Raises as `SavePolicy` does."""
        if self.ended:
            self.policy.recomputed()
        else:  # a backward inside the forward
            self._runs_all = True
        if self._sequence is None:
            return self._giving()
        return Watching(_GivingWatcher(self, self._sequence), self._shortcuts)

    @contextmanager
    def _giving(self) -> Iterator[None]:
        self.recomputing += 1
        try:
            with _GivingMode(self):
                yield
        finally:
            self.recomputing -= 1

    def end(self, outputs: Iterable[Tensor]) -> None:
        """Count what is kept after the forward, and offload it. Raises SurgeryError if the forward wrote to it.

        `outputs` are the tensors that the block returns.
        """
        self.ended = True
        returned = {memory_of(tensor)[0]: tensor for tensor in outputs}
        kept = []
        for result in chain.from_iterable(self._results.values()):
            self._check_written(result)
            if result.kept:
                kept.append(result)
        if not kept:
            return
        self._counted = counted = KeptOfCall(self._block)
        leaving: list[OperatorResult] = []
        for result in kept:
            memory = dict(map(memory_of, (*result.tensors(), *result.written.values())))
            if self._moves or not returned.keys().isdisjoint(memory):
                leaving.append(result)
                memory = {key: size for key, size in memory.items() if key not in returned}
            name = operator_name(result.operator)
            counted.results.append(CountedResult(result.choices, name, memory, result.flops))
        self.policy.note(counted)
        for result in leaving:
            result.move(returned, moves=self._moves)

    def __del__(self) -> None:
        if self._counted is not None:
            self.policy.dropped(self._counted)

    def record(
        self, role: OperatorRole, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> OperatorResult:
        """Record that an operator has run; its result is not kept yet."""
        record = OperatorResult(operator, _form(args))
        if self.policy.restores_generators and role.may_draw and draws(operator, args, kwargs):
            devices = {leaf.device for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
            states = torch_states(device for device in devices if device.type not in ("cpu", "meta"))
            record.restore.append(partial(set_torch_states, states))
        if (generator := kwargs.get("generator")) is not None:
            record.restore.append(partial(generator.set_state, generator.get_state()))
        self._results.setdefault(operator, []).append(record)
        return record

    def keep(
        self, record: OperatorResult, choices: Sequence[Choice], result: Any, args: tuple[Any, ...], flops: int = 0
    ) -> None:
        """Keep the result of an operator that took `flops` operations, because of these choices."""
        if record.kept:
            return
        copied = any(choice.name == ROUTER for choice in choices)  # they are small, and many models write them
        record.keep(result, args, copied=copied)
        record.choices, record.flops = choices, flops
        self._show(record, args)
        self._storages |= dict.fromkeys((memory_of(tensor)[0] for tensor in record.tensors()), record)

    def check_operator(self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Check any operator of the forward once it has run. Raises SurgeryError if it wrote to a kept result."""
        self.policy.ran(operator)
        if not self._storages:
            return
        if is_mutable(operator):
            for index, argument in enumerate(operator._schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                written = args[index] if index < len(args) else kwargs.get(argument.name)
                if isinstance(written, Tensor) and (record := self._storages.get(memory_of(written)[0])):
                    raise self._write_error(record, in_words(operator_name(operator)))
        elif operator_name(operator) == _ALIASING and (record := self._storages.get(memory_of(args[0])[0])):
            record.watch(result)

    def keep_output(
        self, plan: Replay, choices: Sequence[Choice], output: Any, args: tuple[Any, ...]
    ) -> OperatorResult:
        """Keep the output of a call with `args`, because of these choices."""
        kept = [alias_of(tensor) for tensor in ((output,) if plan.single else output)]
        result = OperatorResult(plan.operator, (), choices, plan.flops, True, kept, versions(kept))
        result.written = written_values(plan.read, args)
        self._results.setdefault(None, []).append(result)  # under None: those of the modes are counted by operator
        return result

    def replayed(
        self,
        plan: Replay,
        result: OperatorResult,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Return the kept output of a call, and save again what it saved. Raises SurgeryError if it was written to."""
        self._check_written(result)
        self.show_read(args[: plan.read])
        if self._runs_all:
            return run(*args, **kwargs)
        output = plan.again([alias_of(tensor) for tensor in result.value], args, kwargs)
        result.write(args)
        return output

    def difference_error(self, operator: Any) -> SurgeryError:
        """Return the error for a recompute that calls an operator differently than its forward."""
        return SurgeryError(
            f"the recompute of {self._place} runs {in_words(operator_name(operator))} otherwise than its forward: "
            "it depends on something that has changed since; leave the block out, or save without it"
        )

    def expected(self, operator: Any, index: int, args: tuple[Any, ...]) -> OperatorResult:
        """Return the forward's record of an operator that runs again. Raises SurgeryError if the call differs."""
        results = self._results.get(operator, [])
        if index >= len(results) or results[index].form != _form(args):
            raise self.difference_error(operator)
        self._check_written(results[index])
        self._show(results[index], args)
        return results[index]

    def _show(self, result: OperatorResult, args: tuple[Any, ...]) -> None:
        # copies are kept for routers, whose inputs may differ; what an operator only writes has no values yet
        if result.kept and not result.copied:
            self.show_read(args[: arguments_read(result.operator)])

    def show_read(self, values: Iterable[Any]) -> None:
        """Show the tensors that an operator with a kept result reads."""
        if self.show is not None:
            self.show(leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))

    def _check_written(self, result: OperatorResult) -> None:
        if result.is_written():
            raise self._write_error(result, "something")

    def _write_error(self, result: OperatorResult, writer: str) -> SurgeryError:
        name = in_words(operator_name(result.operator))
        return SurgeryError(
            f"save keeps what {name} makes in {self._place}, and {writer} writes that in place afterwards: have it "
            f"make a tensor of its own (x = x + y for x += y), or leave {name} out of save"
        )


@dataclass(frozen=True, slots=True)
class _WatchedCall:
    """A call of a watched operator in a forward: its kept result and the plan to replay it, if no mode keeps it."""

    operator: Any
    form: Any
    plan: Replay | None = None
    result: OperatorResult | None = None


class _KeepingWatcher:
    """The watcher of a forward: it runs the watched operators, and keeps what the policy chooses."""

    __slots__ = ("_kept", "_mode", "_plans", "_selector", "_sequence", "operators")

    def __init__(self, kept: KeptResults, sequence: list[_WatchedCall | None]) -> None:
        self.operators = kept.policy.operators
        self._kept = kept
        self._sequence = sequence
        self._plans = kept.policy.plans
        self._selector = Selector()
        self._mode: _KeepingMode | None = None

    def call(self, operator: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operator's call, which `run` executes."""
        form = form_of(operator, args, kwargs)
        plan = self._plans.get(form) if form is not None else None
        if plan is None:
            return self._learn(operator, run, form, args, kwargs)
        if plan is OTHER:
            return run(*args, **kwargs)
        if plan is BY_MODE:
            self._sequence.append(_WatchedCall(operator, form))
            with self._keeping():
                return run(*args, **kwargs)
        if not (chosen := self._selector.counted(plan.choices)):
            self._sequence.append(None)
            return run(*args, **kwargs)
        self._kept.show_read(args[: plan.read])
        output = run(*args, **kwargs)
        result = self._kept.keep_output(plan, chosen, output, args)
        self._sequence.append(_WatchedCall(operator, form, plan, result))
        return output

    def _learn(
        self, operator: Any, run: Callable[..., Any], form: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if tracing_context() is not None:
            return run(*args, **kwargs)
        mode = self._keeping()
        mode.records = []
        saved: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            saved.append(tensor)
            return tensor

        with mode, changing_saved(note):
            output = run(*args, **kwargs)
        records, mode.records = mode.records, None
        plan: Replay | str = BY_MODE
        if not records:
            plan = OTHER
        elif form is not None and len(records) == 1:
            result, flops = records[0]
            role = self._kept.policy.role(result.operator)
            if role is not None and role.is_fixed and not (result.restore or result.copied):
                plan = Replay.of(saved, output, args, kwargs, result.operator, role.choices, flops)
        saved.clear()  # the graph holds `record`, and with it the list
        if form is not None:
            self._plans[form] = plan
        if records or form is None:  # a recompute recognizes the other calls by their forms
            self._sequence.append(_WatchedCall(operator, form))
        return output

    def _keeping(self) -> _KeepingMode:
        if self._mode is None:
            self._mode = _KeepingMode(self._kept, self._selector)
        return self._mode


class _GivingWatcher:
    """The watcher of a recompute: it returns kept results of the watched operators, and runs the others."""

    __slots__ = ("_kept", "_mode", "_place", "_plans", "_sequence", "operators")

    def __init__(self, kept: KeptResults, sequence: Sequence[_WatchedCall | None]) -> None:
        self.operators = kept.policy.operators
        self._kept = kept
        self._plans = kept.policy.plans
        self._sequence = sequence
        self._place = 0
        self._mode: _GivingMode | None = None

    def call(self, operator: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operator's call, kept or from `run`. Raises SurgeryError if the call differs."""
        form = form_of(operator, args, kwargs)
        if form is not None and self._plans.get(form) is OTHER:
            return run(*args, **kwargs)
        if form is None and tracing_context() is not None:
            return run(*args, **kwargs)
        if self._place >= len(self._sequence):
            if not self._kept.ended:  # a backward inside the forward
                return run(*args, **kwargs)
            raise self._kept.difference_error(operator)
        call = self._sequence[self._place]
        self._place += 1
        if call is None:
            return run(*args, **kwargs)
        if call.operator is not operator or call.form != form:
            raise self._kept.difference_error(operator)
        if call.plan is not None and call.result is not None:
            return self._kept.replayed(call.plan, call.result, run, args, kwargs)
        if self._mode is None:
            self._mode = _GivingMode(self._kept)
        with self._mode:
            return run(*args, **kwargs)


class _OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types there
    """A dispatch mode that compiled parts of a block ignore, as they ignore torch's selective checkpointing."""

    supports_higher_order_operators = True

    def __init__(self, kept: KeptResults) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tell torch that the compiler may work under this mode."""
        return True


class _KeepingMode(_OperatorMode):  # type: ignore[no-untyped-call]
    """The mode of a forward: it runs all operators, and keeps what the policy chooses."""

    def __init__(self, kept: KeptResults, selector: Selector | None = None) -> None:
        super().__init__(kept)
        self._selector = selector or Selector()
        self.records: list[tuple[OperatorResult, int]] | None = None  # with the flops of each
        # what a router may choose by, with version counters
        self._scores: list[tuple[OperatorResult, weakref.ref[Tensor], int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._kept.recomputing:
            return result
        self._kept.check_operator(func, args, kwargs, result)
        role = self._kept.policy.role(func)
        if role is None:
            return result
        record = self._kept.record(role, func, args, kwargs, result)
        if self.records is not None:
            self.records.append((record, flops_of(func, args, kwargs, result)))
        if chosen := self._selector.chosen(func, role, args, kwargs):
            self._kept.keep(record, chosen, result, args, flops_of(func, args, kwargs, result))
            if role.picks:
                # also keep the scores that the router has just chosen by, since it weighs by them too
                for score, reference, before in self._scores:
                    tensor = reference()
                    if tensor is not None and tensor.numel() == args[0].numel() and version(tensor) == before:
                        self._kept.keep(score, chosen, tensor, ())
                self._scores.clear()
        elif role.score_of is not None:
            self._scores.append((record, weakref.ref(result), version(result)))
        return result


class _GivingMode(_OperatorMode):  # type: ignore[no-untyped-call]
    """The mode of a recompute: it returns kept results of operators, and runs the others."""

    def __init__(self, kept: KeptResults) -> None:
        super().__init__(kept)
        self._indices: Counter[Any] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._kept.policy.role(func) is None:
            return func(*args, **(kwargs or {}))
        expected = self._kept.expected(func, self._indices[func], args)
        self._indices[func] += 1
        return expected.again(args) if expected.kept else func(*args, **(kwargs or {}))


def _form(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the shapes and numbers among arguments; numbers as text, since NaN does not equal itself."""
    leaves = [leaf if isinstance(leaf, (Tensor, bool, int, float, complex)) else None for leaf in tree_leaves(args)]
    return tuple([leaf.shape if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves])
