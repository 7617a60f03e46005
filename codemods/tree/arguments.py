"""Split a call into gradient arguments, past state and the rest, and write the argument list it should have.

The rule: everything up to the last gradient parameter is passed by position. What the caller passes by position after
that stays so, unless past state is among it; then everything after the last gradient parameter becomes a keyword.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.argument_names import (
    is_container,
    is_gradient,
    is_past_state,
    is_switch,
    may_be_state,
    may_carry_gradient,
)
from ckpt_surgery.codemods.facts.file_facts import ForwardSignature, Parameter
from ckpt_surgery.codemods.facts.syntax import Argument
from ckpt_surgery.codemods.repair import NewArgument
from ckpt_surgery.codemods.wording import Because, WordedReason
from ckpt_surgery.model_patches.family import FamilyFacts


class ArgumentRepair(Enum):
    """The repairs of a call's arguments."""

    GRADIENT = "gradient arguments become positional"
    PAST_STATE = "past state becomes a keyword"


ALL_REPAIRS = frozenset(ArgumentRepair)


class UnknownReason(WordedReason):
    """The reasons why an argument's parameter is unknown."""

    UNPACKED = "an unpacked `*` argument may hold anything"
    SURPLUS = "more positional arguments than the block's forward names"
    SIGNATURES = "its blocks ({}) have different signatures"
    OTHERS = "it also runs {}, with other parameters or with a forward that is not at hand"


class GivenResults(NamedTuple):
    """The parameters of a block's forward that calls give results of blocks: as they are, or inside a container."""

    tensors: frozenset[str] = frozenset()
    containers: frozenset[str] = frozenset()


NO_RESULTS = GivenResults()


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of the parameters of one block's forward."""

    block: str
    family: FamilyFacts
    given: GivenResults = NO_RESULTS

    def gradient(self, parameter: Parameter) -> bool:
        """Tell whether the parameter can carry gradient: by its name, or by what calls give it."""
        if self._is_in(self.family.not_gradient, parameter) or self.past(parameter):
            return False
        if self._is_in(self.family.gradient, parameter) or is_gradient(parameter.name, parameter.annotation):
            return True
        return self._is_given(parameter) and not self.container(parameter)

    def container(self, parameter: Parameter) -> bool:
        """Tell whether calls give the parameter a list, tuple or dict of what blocks returned.

        The annotation decides only if the name does not: GPT-2's `hidden_states: tuple[torch.Tensor]` is a tensor.
        """
        name, annotation = parameter.name, parameter.annotation
        if not self._is_given(parameter) or self._is_in(self.family.not_gradient, parameter) or self.past(parameter):
            return False
        return name in self.given.containers or (is_container(annotation) and not is_gradient(name, annotation))

    def _is_given(self, parameter: Parameter) -> bool:
        name = parameter.name
        given = name in self.given.tensors or name in self.given.containers
        return given and not is_switch(name, parameter.annotation) and not may_be_state(name)

    def carriers(self, params: Sequence[Parameter]) -> set[str]:
        """Return the names of the gradient parameters. The first parameter counts: it is what a block transforms."""
        names = {parameter.name for parameter in params if self.gradient(parameter)}
        for first in params[:1]:
            is_option = first.kind != "positional" or is_switch(first.name, first.annotation)
            names |= set() if is_option or self.past(first) else {first.name}
        return names

    def past(self, parameter: Parameter) -> bool:
        """Tell whether the parameter is a cache or recurrent state."""
        return is_past_state(parameter.name) or self._is_in(self.family.past_state, parameter)

    def past_names(self, params: Sequence[Parameter]) -> set[str]:
        """Return the names of the parameters that are past state."""
        return {parameter.name for parameter in params if self.past(parameter)}

    def may_lose_gradient(self, parameter: Parameter) -> bool:
        """Tell whether the parameter may carry a gradient, which a keyword would lose: nothing rules it out."""
        is_constant = parameter.default not in (None, "None")
        no_gradient = self.past(parameter) or self._is_in(self.family.not_gradient, parameter)
        return not (is_constant or no_gradient) and may_carry_gradient(parameter.name, parameter.annotation)

    def _is_in(self, names: AbstractSet[str], parameter: Parameter) -> bool:
        """Tell whether a family lists the parameter, for all its blocks or for this one."""
        return parameter.name in names or f"{self.block}.{parameter.name}" in names


@dataclass(frozen=True, slots=True)
class ArgumentPlan:
    """The faults of a call's arguments, and the right argument list."""

    keyword_gradient: tuple[str, ...] = ()
    positional_past: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    """Gradient parameters after past state that the call passes: no argument list can pass both correctly."""
    containers: tuple[int, ...] = ()
    """Positions of arguments that are lists, tuples or dicts of gradient tensors."""
    hidden: tuple[str, ...] = ()
    """Gradient parameters that an unpacked `**` argument may hold."""
    arguments: tuple[NewArgument, ...] | None = None
    """The new argument list; None if nothing is to be changed, or no list is right."""
    doubtful: tuple[str, ...] = ()
    """Arguments that become keywords along with past state, although they may carry gradient."""
    unknown: Because | None = None

    @classmethod
    def of(
        cls,
        arguments: Sequence[Argument],
        forward: ForwardSignature,
        meaning: Meaning,
        repairs: Collection[ArgumentRepair],
    ) -> ArgumentPlan:
        """Return the plan for one call of one block class, whose new argument list makes only these repairs."""
        bound = bind(arguments, forward)
        if isinstance(bound, Because):
            return cls(unknown=bound)
        call = _BoundCall(arguments, bound, forward.params, meaning)
        by_keyword = tuple(name for name in call.carriers if call.given[name].name)
        past_by_position = tuple(name for name in call.past if not call.given[name].name)
        behind_past = tuple(name for name in call.carriers if call.order.get(name, -1) > call.stop)
        blocked = behind_past if by_keyword or past_by_position else ()
        new = call.repaired(blocked, repairs)
        return cls(
            keyword_gradient=by_keyword,
            positional_past=past_by_position,
            blocked=blocked,
            containers=tuple(call.containers()),
            hidden=call.hidden(),
            arguments=new,
            doubtful=call.doubtful(new or ()),
        )

    @property
    def is_safe(self) -> bool:
        """Whether the new argument list mends everything, and surely loses no gradient."""
        return self.repair is not None and not self.doubtful

    @property
    def repair(self) -> tuple[NewArgument, ...] | None:
        """The new argument list, if it mends everything."""
        return None if self.unknown or self.blocked else self.arguments


def bind(arguments: Sequence[Argument], forward: ForwardSignature) -> dict[str, int] | Because:
    """Map parameter names to argument positions, or return why that is impossible."""
    names = [parameter.name for parameter in forward.params if parameter.kind == "positional"]
    bound: dict[str, int] = {}
    for position, argument in enumerate(arguments):
        if argument.name == "*":
            return UnknownReason.UNPACKED.about()
        if argument.name is None:
            if position >= len(names):
                return UnknownReason.SURPLUS.about()
            bound[names[position]] = position
        elif argument.name != "**":
            bound[argument.name] = position
    return bound


def given_arguments(arguments: Sequence[Argument], forward: ForwardSignature) -> dict[str, Argument] | None:
    """Map parameter names to arguments; None if that is impossible."""
    bound = bind(arguments, forward)
    return None if isinstance(bound, Because) else {name: arguments[position] for name, position in bound.items()}


def binds_alike(arguments: Sequence[Argument], new: Sequence[NewArgument], forward: ForwardSignature) -> bool:
    """Tell whether a new argument list gives the parameters of a forward what they get from the old one."""
    positional = [parameter for parameter in forward.params if parameter.kind == "positional"]
    bound: dict[str, int] = {}
    for parameter, item in zip_longest(positional, (item for item in new if item.keyword is None)):
        if item and (parameter is None or (item.source is None and parameter.default != item.text)):
            return False
        if item and item.source is not None:
            bound[parameter.name] = item.source
    named = ((item.keyword, item.source) for item in new if item.keyword not in (None, "**"))
    return bind(arguments, forward) == bound | dict(named)


_NewArguments: TypeAlias = tuple[NewArgument, ...] | None


class _BoundCall:
    """A call whose arguments are assigned to the parameters of one block's forward."""

    def __init__(
        self, arguments: Sequence[Argument], bound: Mapping[str, int], params: Sequence[Parameter], meaning: Meaning
    ) -> None:
        self.arguments = arguments
        self.bound = bound
        self.meaning = meaning
        self.params = [parameter for parameter in params if parameter.kind == "positional"]
        self.order = {parameter.name: index for index, parameter in enumerate(self.params)}
        self.given = {name: arguments[position] for name, position in bound.items()}
        self.gradient, past = meaning.carriers(params), meaning.past_names(params)
        self.container_names = {parameter.name for parameter in params if meaning.container(parameter)}
        values = [name for name, argument in self.given.items() if argument.is_value]
        self.carriers = [name for name in values if name in self.gradient]
        self.past = [name for name in values if name in past]
        self.stop = min((self.order[name] for name in self.past if name in self.order), default=len(self.params))
        """The index of the first past state that the call passes: the positional prefix has to end before it."""

    def containers(self) -> Iterator[int]:
        """Yield the positions of arguments that hold gradient tensors."""
        for name, argument in self.given.items():
            is_display = name in self.gradient and argument.shape == "container"
            if is_display or (name in self.container_names and argument.is_value):
                yield self.bound[name]

    def hidden(self) -> tuple[str, ...]:
        """Return the gradient parameters that an unpacked `**` argument may hold."""
        unpacked = any(argument.name == "**" for argument in self.arguments)
        return tuple(name for name in self.order if unpacked and name in self.gradient and name not in self.bound)

    def repaired(self, blocked: Collection[str], repairs: Collection[ArgumentRepair]) -> _NewArguments:
        """Return the argument list after some repairs; None if they change nothing."""
        by_position = [name for name in self.carriers if self.given[name].name is None]
        movable = (self.order.keys() & self.carriers) - {*by_position, *blocked}
        moves_gradient = ArgumentRepair.GRADIENT in repairs
        last_blocked = max((self.order[name] for name in blocked), default=-1)
        to_keyword = {
            name
            for name in self.past
            if ArgumentRepair.PAST_STATE in repairs and not self.given[name].name and self.order[name] > last_blocked
        }
        if not (moves_gradient and movable) and not to_keyword:
            return None
        return self.rearranged(self.carriers if moves_gradient else by_position, to_keyword)

    def rearranged(self, carriers: Collection[str], to_keyword: Collection[str]) -> _NewArguments:
        """Return the arguments with the gradient parameters `carriers` by position, and `to_keyword` by keyword.

        None if a parameter before a gradient parameter is not passed and has no default that could be written out.
        """
        last = max((self.order[name] for name in carriers if self.order.get(name, self.stop) < self.stop), default=-1)
        new: list[NewArgument] = []
        for parameter in self.params[: last + 1]:
            if parameter.name in self.bound:
                new.append(NewArgument(self.bound[parameter.name], None))
            elif parameter.default is not None and _is_literal(parameter.default):
                new.append(NewArgument(None, None, parameter.default, parameter.name))
            else:
                return None
        used = {argument.source for argument in new}
        rest = [position for position in range(len(self.arguments)) if position not in used]
        names = {position: name for name, position in self.bound.items()}
        tail = [names[position] for position in rest if self.arguments[position].name is None]
        is_adjacent = [self.order[name] for name in tail] == list(range(last + 1, last + 1 + len(tail)))
        tail_to_keywords = not is_adjacent or any(name in to_keyword for name in tail)
        for position in rest:
            keyword = self.arguments[position].name
            new.append(NewArgument(position, names[position] if keyword is None and tail_to_keywords else keyword))
        return tuple(new)

    def doubtful(self, new: Sequence[NewArgument]) -> tuple[str, ...]:
        """Return the arguments that become keywords although they may carry gradient."""
        keywords = {argument.source for argument in new if argument.keyword is not None}
        return tuple(
            parameter.name
            for parameter in self.params
            if self.bound.get(parameter.name) in keywords
            and (argument := self.given[parameter.name]).name is None
            and argument.is_value
            and self.meaning.may_lose_gradient(parameter)
        )


def reordered(
    arguments: Sequence[Argument], old: ForwardSignature, params: Sequence[Parameter], meaning: Meaning
) -> tuple[NewArgument, ...] | None:
    """Return the arguments of a call once the block's positional parameters are `params`, in that order."""
    bound = bind(arguments, old)
    if isinstance(bound, Because):
        return None
    call = _BoundCall(arguments, bound, params, meaning)
    return call.rearranged(call.carriers, call.past)


def _is_literal(text: str) -> bool:
    """Tell whether a default means the same in the caller's file, which a name may not."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True
