"""Look up the names in `save`: the operators that they stand for, whose results are kept and not recomputed.

Nothing is kept here: `kept_results` does that, and torch's own selective checkpointing in compiled code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.text import listed
from ckpt_surgery.torch_names import DispatchKey, higher_order_operators

ATTENTION = "attention"
ROUTER = "router"
RANDOM = "random"


def _named(*others: str, **operators: str) -> frozenset[str]:
    """Return the full names of operators that are listed by namespace."""
    names = {f"{space}::{name}" for space, names in operators.items() for name in names.split()}
    return frozenset({*others, *names})


VOCABULARY: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        ATTENTION: _named(
            "flex_attention",
            aten="_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
            "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
            "_scaled_dot_product_fused_attention_overrideable _flash_attention_forward _efficient_attention_forward "
            "_cudnn_attention_forward",
            flash_attn="_flash_attn_forward _flash_attn_varlen_forward",
            flash_attn_3="fwd",
        ),
        "matmul": _named(  # nested tensors run linear as a whole
            aten="mm addmm linear _scaled_mm _int_mm _grouped_mm _scaled_grouped_mm", bitsandbytes="gemm_4bit"
        ),
        ROUTER: _named(aten="topk argmax max sort multinomial"),
        "collectives": _named(
            _c10d_functional="all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced "
            "reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast"
        ),
        "norm": _named(
            aten="native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm miopen_batch_norm "
            "_fused_rms_norm"
        ),
        "conv": _named(aten="convolution"),
        RANDOM: frozenset(),
    }
)
"""The operators that a name stands for. Those of "random" are recognized by torch's tag for operators that draw; eager
attention, and the scores of a router, by the operators before and after them."""

_SOFTMAX = frozenset({"aten::_softmax", "aten::_safe_softmax"})
_SCORES = _SOFTMAX | {"aten::sigmoid"}
"""The operators by which routers make scores."""
_FACTORS: Mapping[str, int] = MappingProxyType({"aten::bmm": 0, "aten::baddbmm": 1})
"""The operators by which eager attention takes its weighted sum, with the index of the argument with the weights."""

_COMPOSITES: Mapping[str, frozenset[str]] = MappingProxyType({"matmul": _named(aten="linear matmul")})
"""The operators that run those of a name, and return their results with version counters of their own."""

_DROPOUT = "dropout_p"
"""The argument in which a kernel of attention gets its dropout rate."""

_EVERY = re.compile(r"(?P<name>.*[^:]):(?P<every>\d+)")


@dataclass(frozen=True, slots=True)
class Choice:
    """One entry of `save`: the operators of its `name`, of which every n-th is kept, from the first in each call."""

    text: str
    name: str
    operators: frozenset[str]
    every: int


@dataclass(frozen=True, slots=True)
class OperatorRole:
    """The role of an operator in a policy: choices that keep it anywhere, and those that depend on other operators.

    `weighted_sum` keeps it if its argument at `factor` may come from the last softmax. `score_of` keeps it if a router
    then chooses by its result; `picks` says whether it is an operator by which routers choose.
    """

    choices: tuple[Choice, ...]
    is_softmax: bool
    weighted_sum: Choice | None
    factor: int
    score_of: Choice | None
    picks: bool
    may_draw: bool

    @classmethod
    def of(cls, operator: Any, choices: Iterable[Choice]) -> OperatorRole | None:
        """Return the role of an operator in these choices, also of one of higher order; None if it has none."""
        name, schema = operator_name(operator), getattr(operator, "_schema", None)
        arguments = () if schema is None else schema.arguments
        may_draw = torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
        # operators of other libraries do not have that tag, but take a dropout rate
        may_draw = may_draw or any(argument.name == _DROPOUT for argument in arguments)
        written = [index for index, each in enumerate(arguments) if each.alias_info and each.alias_info.is_write]
        draws_in_place = may_draw and written == [0]  # as `bernoulli_` does
        if schema is not None and schema.is_mutable and not draws_in_place:
            return None
        names = {name, f"{name}.{getattr(operator, '_overloadname', '')}"}
        keeping = tuple(
            choice
            for choice in choices
            if not names.isdisjoint(choice.operators) or (choice.name == RANDOM and may_draw)
        )
        by_name = {choice.name: choice for choice in choices}
        attention, router = by_name.get(ATTENTION), by_name.get(ROUTER)
        role = cls(
            keeping,
            is_softmax=attention is not None and name in _SOFTMAX,
            weighted_sum=attention if name in _FACTORS else None,
            factor=_FACTORS.get(name, 0),
            score_of=router if name in _SCORES else None,
            picks=router is not None and name in VOCABULARY[ROUTER],
            may_draw=may_draw,
        )
        return role if keeping or role.is_relative else None

    @property
    def is_relative(self) -> bool:
        """Whether operators before or after it decide if its result is kept, or it decides about theirs."""
        return bool(self.is_softmax or self.weighted_sum or self.score_of or self.picks)

    @property
    def is_fixed(self) -> bool:
        """Whether the same choices keep it whatever runs before and after it."""
        return bool(self.choices) and not self.is_relative


def choices_of(save: Iterable[str]) -> tuple[Choice, ...]:
    """Parse the option `save`. Raises SurgeryError if a name stands for nothing that can be kept."""
    choices = []
    for text in save:
        match = _EVERY.fullmatch(text)
        name, every = (match["name"], int(match["every"])) if match else (text, 1)
        if every < 1:
            raise SurgeryError(f"save names {text!r}: give :2 for every second, and so on")
        operators = VOCABULARY[name] if name in VOCABULARY else frozenset({_operator(name)})
        choices.append(Choice(text, name, operators, every))
    return tuple(choices)


def watched_operators(choices: Iterable[Choice]) -> list[Any] | None:
    """List the operators that may be kept, and those that run them; None if all operators have to be watched.

    All have to be if one of them takes numbers for tensors: the 2 in `x * 2`, which is `aten.mul.Tensor(x, 2)`,
    reaches a watcher as a number, and torch only takes a tensor back. Such operators have an overload for scalars.
    """
    names: set[str] = set()
    for choice in choices:
        if choice.name not in VOCABULARY or choice.name == RANDOM:
            return None
        names |= choice.operators | _COMPOSITES.get(choice.name, frozenset())
        names |= {ATTENTION: _SOFTMAX | _FACTORS.keys(), ROUTER: _SCORES}.get(choice.name, frozenset())
    found = []
    for name in sorted(names):
        space, _, operator = name.rpartition("::")
        operator, _, overload = operator.partition(".")
        if not space:
            found += [each for each in (higher_order_operators.get(operator),) if each is not None]
            continue
        packet = getattr(getattr(torch.ops, space), operator, None)
        overloads = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
        if any("Scalar" in each._overloadname for each in overloads):
            return None
        found += [
            each
            for each in overloads
            if not each._schema.is_mutable and (not overload or each._overloadname == overload)
        ]
    return found


def operator_name(operator: Any) -> str:
    """Return the name of an operator without its overload: "aten::mm"."""
    schema = getattr(operator, "_schema", None)
    return str(operator.name()) if schema is None else str(schema.name)


def in_words(name: str) -> str:
    """Return the name of an operator as it is written in Python and in `save`: "aten.mm"."""
    return name.replace("::", ".")


def is_mutable(operator: Any) -> bool:
    """Tell whether an operator writes to one of its arguments; those of higher order do not."""
    schema = getattr(operator, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


_READ = {"aten::native_batch_norm": 3, "aten::cudnn_batch_norm": 3, "aten::miopen_batch_norm": 3}  # then statistics


def arguments_read(operator: Any) -> int | None:
    """Return how many arguments an operator only reads, if it writes to others unmarked in its schema; else None."""
    return _READ.get(operator_name(operator))


def draws(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call of an operator that can draw random numbers does so: attention without dropout does not."""
    for index, argument in enumerate(operator._schema.arguments):
        if argument.name == _DROPOUT:
            return bool(args[index] if index < len(args) else kwargs.get(_DROPOUT, argument.default_value))
    return True


class Selector:
    """The choice of the results to keep in one run of a block. Ask it for each operator with a role, in order."""

    def __init__(self) -> None:
        self._counts: Counter[Choice] = Counter()
        self._softmax: torch.Size | None = None

    def chosen(
        self, operator: Any, role: OperatorRole, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Choice, ...]:
        """Return the choices that keep the result of this operator, not knowing yet what follows it."""
        matching = [choice for choice in role.choices if choice.name != RANDOM or draws(operator, args, kwargs)]
        if role.is_softmax:
            self._softmax = args[0].shape
        elif role.weighted_sum is not None and self._may_be_weights(args[role.factor]):
            self._softmax = None
            matching.append(role.weighted_sum)
        return self.counted(matching)

    def counted(self, matching: Iterable[Choice]) -> tuple[Choice, ...]:
        """Count one more call of each matching choice, and return the choices that keep it."""
        chosen = []
        for choice in matching:
            count = self._counts[choice]
            self._counts[choice] = count + 1
            if count % choice.every == 0:
                chosen.append(choice)
        return tuple(chosen)

    def _may_be_weights(self, factor: Tensor) -> bool:
        """Tell whether a factor may be the result of the last softmax, perhaps without the column of a sink."""
        if not self._softmax:
            return False
        columns = self._softmax[-1]
        return factor.shape[-1] in (columns, columns - 1) and factor.shape[:-1].numel() == self._softmax[:-1].numel()


def compiled_contexts(save: tuple[str, ...]) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of torch's selective checkpointing for names in `save`, for blocks that torch compiles.

    Operators that draw random numbers run again from the saved generator states: torch would not advance the
    generators past them.
    """
    choices, selector = choices_of(save), Selector()

    def policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        role = OperatorRole.of(operator, choices)
        if role is None or (role.may_draw and draws(operator, args, kwargs)):
            return CheckpointPolicy.PREFER_RECOMPUTE
        kept = selector.chosen(operator, role, args, kwargs)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return cast(tuple[AbstractContextManager[Any], AbstractContextManager[Any]], contexts)


def _operator(name: str) -> str:
    """Return the full name of an operator, with its overload if `name` has one. Raises SurgeryError."""
    space, operator, *overload = name.replace("::", ".").split(".")[:3] if "." in name or "::" in name else (name, "")
    if not space or not operator:
        raise SurgeryError(
            f"save names {name!r}: give {', '.join(VOCABULARY)}, or the name of an operator such as aten.mm"
        )
    packet = getattr(getattr(torch.ops, space), operator, None)
    if packet is None and space == "aten":
        raise SurgeryError(f"save names {name}, which is not an operator of torch")
    overloads = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
    if overload and packet is not None:
        overloads = [each for each in overloads if each._overloadname == overload[0]]
        if not overloads:
            raise SurgeryError(f"save names {name}: the overloads of {operator} are {listed(packet.overloads())}")
    if any(each.is_view for each in overloads):
        raise SurgeryError(f"save names {name}, which makes views: run again, they cost nothing")
    whole = [each for each in overloads if not each._schema.is_mutable]
    composite = DispatchKey.CompositeImplicitAutograd
    if whole and all(each.has_kernel_for_dispatch_key(composite) for each in whole):
        raise SurgeryError(f"save names {name}, which is made of other operators: name those that it runs")
    seeded = torch.Tag.nondeterministic_seeded
    if overloads and not whole and not any(seeded in each.tags for each in overloads):
        raise SurgeryError(f"save names {name}, which writes in place: there is no result of its own to keep")
    return f"{space}::{operator}" + "".join(f".{each}" for each in overload)
