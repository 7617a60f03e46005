"""One call split into gradient arguments, past state and the rest, and the argument list it should have.

The rule: the prefix up to the last gradient parameter is positional; what the caller passed by position
behind it stays so, unless past state is among it, and then everything behind the prefix is by keyword.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.file_facts import Arg, Forward, Parameter
from ckpt_surgery.model_patches.family import FamilyFacts
from ckpt_surgery.model_patches.vocabulary import is_gradient, is_past_state, is_switch


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the parameters of one block's forward mean."""

    block: str
    family: FamilyFacts

    def gradient(self, parameter: Parameter) -> bool:
        """Whether the parameter can carry gradient."""
        names = {parameter.name, f"{self.block}.{parameter.name}"}
        if names & self.family.not_gradient or self.past(parameter):
            return False
        return bool(names & self.family.gradient) or is_gradient(parameter.name, parameter.annotation)

    def carriers(self, params: Sequence[Parameter]) -> set[str]:
        """The names of the gradient parameters. The first parameter is one: it is what a block transforms."""
        found = {parameter.name for parameter in params if self.gradient(parameter)}
        first = params[0] if params else None
        if (
            first
            and first.kind == "positional"
            and not self.past(first)
            and not is_switch(first.name, first.annotation)
        ):
            found.add(first.name)
        return found

    def past(self, parameter: Parameter) -> bool:
        """Whether the parameter is a cache or recurrent state."""
        if parameter.name in self.family.past_state or f"{self.block}.{parameter.name}" in self.family.past_state:
            return True
        return is_past_state(parameter.name)


@dataclass(frozen=True, slots=True)
class Piece:
    """One argument of the new call: an old one (`source` is its position there), a gap's default, or a new one."""

    source: int | None
    keyword: str | None
    text: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wrong with a call's arguments, and the argument list that is right."""

    keyword_gradient: tuple[str, ...] = ()
    positional_past: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    """Gradient parameters that stand behind past state the call passes: no call can have both right."""
    containers: tuple[int, ...] = ()
    """Positions of arguments that are list, tuple or dict displays for a gradient parameter."""
    hidden: tuple[str, ...] = ()
    """Gradient parameters that an unpacked `**` argument may hold."""
    pieces: tuple[Piece, ...] | None = None
    unknown: str = ""


def bind(arguments: Sequence[Arg], forward: Forward) -> dict[str, int] | str:
    """Parameter name to argument position, or a sentence that says why it cannot be told."""
    names = [parameter.name for parameter in forward.params if parameter.kind == "positional"]
    bound: dict[str, int] = {}
    for position, argument in enumerate(arguments):
        if argument.name == "*":
            return "an unpacked `*` argument may hold anything"
        if argument.name is None:
            if position >= len(names):
                return "more positional arguments than the block's forward names"
            bound[names[position]] = position
        elif argument.name != "**":
            bound[argument.name] = position
    return bound


def plan(arguments: Sequence[Arg], forward: Forward, meaning: Meaning, *, gradient: bool, past: bool) -> Plan:
    """The plan for one call of one block class.

    `gradient` and `past` say which of the two repairs are wanted: the pieces make only those.
    """
    bound = bind(arguments, forward)
    if isinstance(bound, str):
        return Plan(unknown=bound)
    params = [parameter for parameter in forward.params if parameter.kind == "positional"]
    carries = meaning.carriers(forward.params)
    past_names = {p.name for p in forward.params if meaning.past(p)}
    real = {name for name, position in bound.items() if arguments[position].shape not in ("none", "constant")}
    by_keyword = tuple(n for n in bound if n in carries & real and arguments[bound[n]].name is not None)
    past_by_position = tuple(n for n in bound if n in past_names & real and arguments[bound[n]].name is None)
    order = {parameter.name: index for index, parameter in enumerate(params)}
    wall = min((order[name] for name in past_names & real if name in order), default=len(params))
    blocked = tuple(
        name
        for name in bound
        if name in carries & real and order.get(name, -1) > wall and by_keyword + past_by_position
    )
    movable = [name for name in by_keyword if name in order and name not in blocked]
    unpacked = any(argument.name == "**" for argument in arguments)
    hidden = tuple(p.name for p in params if unpacked and p.name in carries and p.name not in bound)
    containers = tuple(
        bound[n] for n in bound if n in carries and arguments[bound[n]].shape in ("list", "tuple", "dict")
    )
    pieces: tuple[Piece, ...] | None = None
    free_past = [name for name in past_by_position if not any(order[one] > order[name] for one in blocked)]
    if (gradient and movable) or (past and free_past):
        wanted = {name for name in carries & real if gradient or arguments[bound[name]].name is None}
        pieces = _pieces(arguments, params, bound, wanted, past_names & real, set(free_past) if past else set())
    return Plan(by_keyword, past_by_position, blocked, containers, hidden, pieces)


def reordered(
    arguments: Sequence[Arg], old: Forward, params: Sequence[Parameter], meaning: Meaning
) -> tuple[Piece, ...] | None:
    """The argument list of a call after the block's positional parameters became `params`, in that order."""
    bound = bind(arguments, old)
    if isinstance(bound, str):
        return None
    real = {name for name, position in bound.items() if arguments[position].shape not in ("none", "constant")}
    carries = meaning.carriers(params) & real
    past = {p.name for p in params if meaning.past(p)} & real
    return _pieces(arguments, params, bound, carries, past, past)


def _pieces(
    arguments: Sequence[Arg],
    params: Sequence[Parameter],
    bound: dict[str, int],
    carries: set[str],
    past: set[str],
    unwanted: set[str],
) -> tuple[Piece, ...] | None:
    """The new argument list, or None where a gap before a gradient parameter has no default to fill it.

    `carries` are the gradient parameters to have by position, `past` the past state that the call passes
    (no prefix reaches beyond it), `unwanted` the part of it that must not stay positional.
    """
    names = {position: name for name, position in bound.items()}
    positional = sum(argument.name is None for argument in arguments)
    order = {parameter.name: index for index, parameter in enumerate(params)}
    wall = min((order[name] for name in past if name in order), default=len(params))
    reach = max((order[name] for name in carries if name in order and order[name] < wall), default=-1)
    pieces: list[Piece] = []
    for parameter in params[: reach + 1]:
        if parameter.name in bound:
            pieces.append(Piece(bound[parameter.name], None))
        elif parameter.default is not None and _is_literal(parameter.default):
            pieces.append(Piece(None, None, parameter.default, parameter.name))
        else:
            return None
    used = {piece.source for piece in pieces}
    tail = [position for position in range(positional) if position not in used]
    follows = [order[names[position]] for position in tail] == list(range(reach + 1, reach + 1 + len(tail)))
    keyworded = not follows or any(names[position] in unwanted for position in tail)
    pieces.extend(Piece(position, names[position] if keyworded else None) for position in tail)
    rest = [position for position in range(positional, len(arguments)) if position not in used]
    pieces.extend(Piece(position, arguments[position].name) for position in rest)
    return tuple(pieces)


def _is_literal(text: str) -> bool:
    """Whether a default means the same in the caller's file: a name would not."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True
