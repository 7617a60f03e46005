"""Make the inputs that `model_patches` describes as text, such as `floats(batch, 1, 4 * hop_length)`.

Such a form calls one of the functions in `_FORMS` or `_CHANGES` with numbers: literals, lists of them, sums, products
and floored quotients, the sizes in `_SIZES`, and fields of the model's configurations: `num_channels` of any,
`decoder_config.num_channels` of a certain one. A list in a configuration counts as its length. The name of an argument
that already has a value stands for that.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.tiny.arguments import ForwardArguments


def make_input(form: str, argument: str, arguments: ForwardArguments) -> Any:
    """Make what a form describes, mostly a tensor, for `argument`, which may have a value already.

    Raises:
        ValueError: The form names something that does not exist.
    """
    try:
        call: Any = ast.parse(form, mode="eval").body
        numbers = [_number(node, arguments) for node in call.args]
        named = {keyword.arg: _number(keyword.value, arguments) for keyword in call.keywords}
        if call.func.id in _CHANGES:
            return _CHANGES[call.func.id](arguments.values[argument], *numbers, **named)
        return _FORMS[call.func.id](arguments, *numbers, **named)
    except (AttributeError, KeyError, SyntaxError, TypeError) as error:
        raise ValueError(f"{argument!r} of the family's inputs is not to be made by {form!r}: {error}") from error


def _number(node: ast.expr, arguments: ForwardArguments) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_number(item, arguments) for item in items]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, arguments)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_number(left, arguments), _number(right, arguments))
    name = ast.unparse(node)
    if name in arguments.values:
        return arguments.values[name]
    if name in _SIZES:
        return _SIZES[name](arguments)
    value = operator.attrgetter(name)(arguments.config) if "." in name else arguments.find(name)
    return len(value) if isinstance(value, (list, tuple)) else int(value)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_SIZES: dict[str, Callable[[ForwardArguments], int]] = {
    "batch": lambda arguments: arguments.batch,
    "length": lambda arguments: arguments.length,
    "height": lambda arguments: arguments.image()[0],
    "width": lambda arguments: arguments.image()[1],
    "channels": ForwardArguments.channels,
    "first_channels": lambda a: next(m for m in a.model.modules() if isinstance(m, torch.nn.Conv2d)).in_channels,
    "mels": ForwardArguments.mels,
    "classes": ForwardArguments.classes,
}


def _places(arguments: ForwardArguments, side: int, least: int = 0) -> Tensor:
    """Return the row and column of each patch of a square image, shape (batch, patches, 2)."""
    along = torch.arange(side) + least
    return torch.stack(torch.meshgrid(along, along, indexing="ij"), -1).reshape(1, -1, 2).repeat(arguments.batch, 1, 1)


def _located(arguments: ForwardArguments, side: int, *, width: int) -> Tensor:
    """Draw a sequence of patches per image, each preceded by its row and column, which count from 1."""
    places = _places(arguments, side, least=1).to(arguments.dtype)
    return torch.cat([places, arguments.floats((arguments.batch, side * side, width))], -1)


def _pooled(arguments: ForwardArguments, side: int) -> Tensor:
    """Return for each token of a square image the indices of the four patches that it pools."""
    places = torch.arange(arguments.batch * side * side).reshape(arguments.batch, side // 2, 2, side // 2, 2)
    return places.transpose(2, 3).reshape(-1, 4)


def _marked(arguments: ForwardArguments, count: int) -> Tensor:
    """Mark `count` tokens after the first of each text."""
    places = torch.zeros((arguments.batch, arguments.length), dtype=torch.long)
    places[:, 1 : 1 + count] = 1
    return places


def _keys_and_values(arguments: ForwardArguments) -> Any:
    """Draw the keys and values of the last layer of each kind of a text model."""
    text = arguments.config.get_text_config()
    states = {}
    for kind in dict.fromkeys(text.layer_types):
        is_full = kind == "full_attention"
        width = (is_full and getattr(text, "global_head_dim", None)) or text.head_dim
        heads = (is_full and getattr(text, "num_global_key_value_heads", None)) or text.num_key_value_heads
        shape = (arguments.batch, heads, arguments.length, width)
        states[kind] = (arguments.floats(shape), arguments.floats(shape))
    return states


def _placed(old: Tensor, *places: int, value: int) -> Tensor:
    old[..., list(places)] = value
    return old


_FORMS: dict[str, Callable[..., Any]] = {
    "floats": lambda arguments, *shape: arguments.floats(shape),
    "shares": lambda arguments, *shape: arguments.floats(shape).sigmoid(),
    "parts": lambda arguments, *shape: arguments.floats(shape).softmax(-1),
    "integers": lambda arguments, *shape, below, least=0: arguments.integers(shape, below - least) + least,
    "tokens": lambda arguments, *shape, below=2**31: arguments.tokens(shape) % below,
    "zeros": lambda arguments, *shape: torch.zeros(shape, dtype=torch.long),
    "ones": lambda arguments, *shape: torch.ones(shape, dtype=torch.long),
    "falses": lambda arguments, *shape: torch.zeros(shape, dtype=torch.bool),
    "trues": lambda arguments, *shape: torch.ones(shape, dtype=torch.bool),
    "full": lambda arguments, *shape, value: torch.full(shape, value),
    "counted": lambda arguments, *shape: torch.arange(shape[-1]).expand(shape).clone(),
    "constant": lambda arguments, value: torch.tensor(value),
    "rows": lambda arguments, row: torch.tensor([row] * arguments.batch),
    "copied": lambda arguments, value: value.clone(),
    "alternate": ForwardArguments.alternate_patches,
    "places": _places,
    "located": _located,
    "pooled": _pooled,
    "marked": _marked,
    "boxes": lambda arguments, *shape: arguments.boxes(shape),
    "keys_and_values": _keys_and_values,
}
"""The functions that make a tensor."""
_CHANGES: dict[str, Callable[..., Tensor]] = {
    "shaped": lambda old, *shape: old.reshape(shape),
    "first": lambda old, count: old[:count],
    "bools": lambda old: old.bool(),
    "placed": _placed,
}
"""The functions that change the tensor that general rules have made for the argument."""
