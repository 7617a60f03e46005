"""One call split into gradient arguments, past state and the rest, and the argument list it should have.

The rule: the prefix up to the last gradient parameter is positional. What the caller passed by position behind it
stays so unless past state is among it; then everything behind the prefix is by keyword.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ckpt_surgery.codemods.facts.file_facts import ForwardSignature, Parameter
from ckpt_surgery.codemods.facts.syntax import Argument
from ckpt_surgery.codemods.repair import NewArgument
from ckpt_surgery.codemods.wording import Because, WordedReason
from ckpt_surgery.model_patches.family import FamilyFacts
from ckpt_surgery.model_patches.vocabulary import (
    is_container,
    is_gradient,
    is_past_state,
    is_switch,
    may_be_state,
    may_carry_gradient,
)


class ArgumentRepair(Enum):
    """What may be changed about a call's arguments."""

    GRADIENT = "gradient arguments become positional"
    PAST_STATE = "past state becomes a keyword"


ALL_REPAIRS = frozenset(ArgumentRepair)


class UnknownReason(WordedReason):
    """Why nobody can tell which argument reaches which parameter."""

    UNPACKED = "an unpacked `*` argument may hold anything"
    SURPLUS = "more positional arguments than the block's forward names"
    SIGNATURES = "its blocks ({}) have different signatures"


@dataclass(frozen=True, slots=True)
class Unknown(Because):
    """Arguments that cannot be assigned to parameters."""


class GivenResults(NamedTuple):
    """The parameters of a block's forward that calls give what blocks returned: as it is, or in a container."""

    tensors: frozenset[str] = frozenset()
    containers: frozenset[str] = frozenset()


NO_RESULTS = GivenResults()


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the parameters of one block's forward mean."""

    block: str
    family: FamilyFacts
    given: GivenResults = NO_RESULTS

    def gradient(self, parameter: Parameter) -> bool:
        """Whether the parameter can carry gradient: by its name, or by what calls give it."""
        names = {parameter.name, f"{self.block}.{parameter.name}"}
        if names & self.family.not_gradient or self.past(parameter):
            return False
        if names & self.family.gradient or is_gradient(parameter.name, parameter.annotation):
            return True
        return self._is_given(parameter) and not self.container(parameter)

    def container(self, parameter: Parameter) -> bool:
        """Whether calls give the parameter a list, tuple or dict of what blocks returned.

        The annotation tells for a name that says nothing; GPT-2's `hidden_states: tuple[torch.Tensor]` is a tensor.
        """
        if parameter.name in self.family.not_gradient or self.past(parameter) or not self._is_given(parameter):
            return False
        annotated = is_container(parameter.annotation) and not is_gradient(parameter.name, parameter.annotation)
        return annotated or parameter.name in self.given.containers

    def _is_given(self, parameter: Parameter) -> bool:
        if is_switch(parameter.name, parameter.annotation) or may_be_state(parameter.name):
            return False
        return parameter.name in self.given.tensors | self.given.containers

    def carriers(self, params: Sequence[Parameter]) -> set[str]:
        """The names of the gradient parameters. The first parameter is one: it is what a block transforms."""
        names = {parameter.name for parameter in params if self.gradient(parameter)}
        first = params[0] if params else None
        if (
            first
            and first.kind == "positional"
            and not self.past(first)
            and not is_switch(first.name, first.annotation)
        ):
            names.add(first.name)
        return names

    def past(self, parameter: Parameter) -> bool:
        """Whether the parameter is a cache or recurrent state."""
        if parameter.name in self.family.past_state or f"{self.block}.{parameter.name}" in self.family.past_state:
            return True
        return is_past_state(parameter.name)

    def past_names(self, params: Sequence[Parameter]) -> set[str]:
        """The names of the parameters that are past state."""
        return {parameter.name for parameter in params if self.past(parameter)}


@dataclass(frozen=True, slots=True)
class ArgumentPlan:
    """What is wrong with a call's arguments, and the argument list that is right."""

    keyword_gradient: tuple[str, ...] = ()
    positional_past: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    """Gradient parameters that stand behind past state the call passes: no call can pass both correctly."""
    containers: tuple[int, ...] = ()
    """Positions of arguments that are lists, tuples or dicts of gradient tensors."""
    hidden: tuple[str, ...] = ()
    """Gradient parameters that an unpacked `**` argument may hold."""
    arguments: tuple[NewArgument, ...] | None = None
    """The new argument list; None where nothing is to be changed, or no list is right."""
    loosened: tuple[str, ...] = ()
    """Arguments that become keywords with past state, and of which nothing tells whether they carry gradient."""
    unknown: Unknown | None = None

    @property
    def is_safe(self) -> bool:
        """Whether the new argument list puts everything right, and surely loses no gradient."""
        return self.repair is not None and not self.loosened

    @property
    def repair(self) -> tuple[NewArgument, ...] | None:
        """The new argument list, where it puts everything right."""
        return None if self.unknown or self.blocked else self.arguments


def bind(arguments: Sequence[Argument], forward: ForwardSignature) -> dict[str, int] | Unknown:
    """Parameter name to argument position."""
    names = [parameter.name for parameter in forward.params if parameter.kind == "positional"]
    bound: dict[str, int] = {}
    for position, argument in enumerate(arguments):
        if argument.name == "*":
            return Unknown(UnknownReason.UNPACKED)
        if argument.name is None:
            if position >= len(names):
                return Unknown(UnknownReason.SURPLUS)
            bound[names[position]] = position
        elif argument.name != "**":
            bound[argument.name] = position
    return bound


def plan_arguments(
    arguments: Sequence[Argument], forward: ForwardSignature, meaning: Meaning, repairs: Collection[ArgumentRepair]
) -> ArgumentPlan:
    """The plan for one call of one block class, whose new argument list makes only these repairs."""
    bound = bind(arguments, forward)
    if isinstance(bound, Unknown):
        return ArgumentPlan(unknown=bound)
    params = [parameter for parameter in forward.params if parameter.kind == "positional"]
    order = {parameter.name: index for index, parameter in enumerate(params)}
    gradient_names = meaning.carriers(forward.params)
    values = {name for name, position in bound.items() if arguments[position].is_value}
    carriers, past = gradient_names & values, meaning.past_names(forward.params) & values
    by_keyword = tuple(name for name in bound if name in carriers and arguments[bound[name]].name is not None)
    past_by_position = tuple(name for name in bound if name in past and arguments[bound[name]].name is None)
    wall = _first_past(past, order, params)
    blocked = tuple(
        name for name in bound if name in carriers and order.get(name, -1) > wall and by_keyword + past_by_position
    )
    movable = [name for name in by_keyword if name in order and name not in blocked]
    free_past = {name for name in past_by_position if not any(order[other] > order[name] for other in blocked)}
    gradient, past_state = ArgumentRepair.GRADIENT in repairs, ArgumentRepair.PAST_STATE in repairs
    new: tuple[NewArgument, ...] | None = None
    if (gradient and movable) or (past_state and free_past):
        positional = {name for name in carriers if gradient or arguments[bound[name]].name is None}
        new = _new_arguments(arguments, params, bound, positional, past, free_past if past_state else set())
    holding = {parameter.name for parameter in forward.params if meaning.container(parameter)}
    unpacked = any(argument.name == "**" for argument in arguments)
    return ArgumentPlan(
        keyword_gradient=by_keyword,
        positional_past=past_by_position,
        blocked=blocked,
        containers=tuple(
            position
            for name, position in bound.items()
            if (name in gradient_names and arguments[position].shape in ("list", "tuple", "dict"))
            or (name in holding and arguments[position].is_value)
        ),
        hidden=tuple(p.name for p in params if unpacked and p.name in gradient_names and p.name not in bound),
        arguments=new,
        loosened=tuple(_loosened(arguments, params, bound, new or (), meaning)),
    )


def _loosened(
    arguments: Sequence[Argument],
    params: Sequence[Parameter],
    bound: Mapping[str, int],
    new: Sequence[NewArgument],
    meaning: Meaning,
) -> Iterator[str]:
    keywords = {argument.source for argument in new if argument.keyword is not None}
    for parameter in params:
        position = bound.get(parameter.name, -1)
        if position in keywords and arguments[position].name is None and arguments[position].is_value:
            number = parameter.default not in (None, "None")
            known = meaning.past(parameter) or parameter.name in meaning.family.not_gradient
            if not (number or known) and may_carry_gradient(parameter.name, parameter.annotation):
                yield parameter.name


def reordered(
    arguments: Sequence[Argument], old: ForwardSignature, params: Sequence[Parameter], meaning: Meaning
) -> tuple[NewArgument, ...] | None:
    """The argument list of a call after the block's positional parameters became `params`, in that order."""
    bound = bind(arguments, old)
    if isinstance(bound, Unknown):
        return None
    values = {name for name, position in bound.items() if arguments[position].is_value}
    past = meaning.past_names(params) & values
    return _new_arguments(arguments, params, bound, meaning.carriers(params) & values, past, past)


def _first_past(past: Collection[str], order: Mapping[str, int], params: Sequence[Parameter]) -> int:
    """The position of the first parameter that is past state; behind the last one where there is none."""
    return min((order[name] for name in past if name in order), default=len(params))


def _new_arguments(
    arguments: Sequence[Argument],
    params: Sequence[Parameter],
    bound: Mapping[str, int],
    carriers: Collection[str],
    past: Collection[str],
    unwanted: Collection[str],
) -> tuple[NewArgument, ...] | None:
    """The new argument list, or None where a gap before a gradient parameter has no default to fill it.

    `carriers` are the gradient parameters to have by position, `past` the past state that the call passes (no
    prefix reaches beyond it), `unwanted` the part of it that must not stay positional.
    """
    names = {position: name for name, position in bound.items()}
    positional = sum(argument.name is None for argument in arguments)
    order = {parameter.name: index for index, parameter in enumerate(params)}
    wall = _first_past(past, order, params)
    reach = max((order[name] for name in carriers if name in order and order[name] < wall), default=-1)
    new: list[NewArgument] = []
    for parameter in params[: reach + 1]:
        if parameter.name in bound:
            new.append(NewArgument(bound[parameter.name], None))
        elif parameter.default is not None and _is_literal(parameter.default):
            new.append(NewArgument(None, None, parameter.default, parameter.name))
        else:
            return None
    used = {argument.source for argument in new}
    tail = [position for position in range(positional) if position not in used]
    follows = [order[names[position]] for position in tail] == list(range(reach + 1, reach + 1 + len(tail)))
    keyworded = not follows or any(names[position] in unwanted for position in tail)
    new.extend(NewArgument(position, names[position] if keyworded else None) for position in tail)
    rest = [position for position in range(positional, len(arguments)) if position not in used]
    new.extend(NewArgument(position, arguments[position].name) for position in rest)
    return tuple(new)


def _is_literal(text: str) -> bool:
    """Whether a default means the same in the caller's file: a name would not."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True
