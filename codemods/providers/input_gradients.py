"""Find checkpoint switches behind frozen embeddings, and in-place writes into embeddings that may be leaves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.interpreter import Function
from ckpt_surgery.codemods.facts.script_facts import Spot
from ckpt_surgery.codemods.facts.syntax import dotted, drops_gradient, span_of, statements_below
from ckpt_surgery.codemods.scripts.names import Names, ScriptNode, names_of, tail
from ckpt_surgery.codemods.scripts.signs import checkpoint_modes, checkpoint_switches
from ckpt_surgery.model_patches.release_names import SWITCH_ON, TRAINING_SWITCH

_GIVES_GRADIENT = re.compile(
    r"input_require_grad|inputs_require_grad|register_forward_hook|prepare_model_for_|unsloth"
    r"|(?:modules_to_save|target_modules)\s*=\s*[^)\n]*(?:embed|wte)"
)
"""Signs that the input of the first block has a gradient: hooks on the embeddings, or trained embeddings."""
_EMBEDDINGS = re.compile(r"get_input_embeddings\(\)$|\b(?:embed_tokens|word_embeddings|wte)$")
_BLOCKS = re.compile(r"\b(?:layers?|blocks?|h|encoder|decoder)\b")
_SET_TRAINED = re.compile(r"requires_grad(?: = |_\()True")
_SWITCHES = (
    *(f".{name}(" for name in SWITCH_ON),
    *(text for name in TRAINING_SWITCH for text in (f"{name}=True", f".{name} = True")),
)
_EMBEDDING_CALLS = ("get_input_embeddings()(", "embed_tokens(", "word_embeddings(", "wte(")
"""Calls of embeddings. `enable_input_require_grads` makes their results leaves, which must not be written into."""
_ASSIGNS_CALL = re.compile(r"\s*(\w+) = [\w.]*")
"""The line in front of such a call, if it binds a name to the result."""
_WRITES = re.compile(r"\[[^\n]*\]\s*[-+*/]?=[^=]|\s*[-+*/]=|\.\w*[a-z]_\(")
_TRANSFORMERS = re.compile(r"^(?:(?:from|import) transformers\b|from \.{3,}modeling_utils )", re.M)
"""An import of transformers, or one in its own files, but not of an old copy of these."""
_RUNS_WITHOUT_GRADIENT = re.compile(r"generate|sample|infer|resize|init", re.I)
_NOT_WRITING = frozenset({"requires_grad_", "retain_grad_", "share_memory_"})


class CutOff(NamedTuple):
    """A switch of transformers' checkpointing, and what freezes the parameters before the first block.

    `reentrant`: the file sets `use_reentrant=True`; otherwise that is the default up to transformers 4.57.
    """

    spot: Spot
    text: str
    model: str
    cause: str
    line: int
    reentrant: bool


class LeafWrite(NamedTuple):
    """An in-place write into embeddings: their name, the call that returned them (`made`), and its line."""

    spot: Spot
    name: str
    made: str
    line: int


def _may_cut_off(text: str) -> bool:
    """Tell whether a file of this text may checkpoint behind frozen embeddings."""
    switches = any(switch in text for switch in _SWITCHES)
    freezes = any(word in text for word in ("get_peft_model(", ".add_adapter(", "requires_grad"))
    return switches and freezes and not _GIVES_GRADIENT.search(text)


def _may_write(text: str) -> bool:
    """Tell whether a file of this text may write into the embeddings of a model of transformers."""
    if "PreTrainedModel" not in text and _EMBEDDING_CALLS[0] not in text:
        return False
    lines = (before.rpartition("\n")[2] for call in _EMBEDDING_CALLS for before in text.split(call)[:-1])
    names = {match[1] for line in lines if (match := _ASSIGNS_CALL.fullmatch(line))}
    written = any(_WRITES.match(after) for name in names for after in text.split(name)[1:])
    return written and _TRANSFORMERS.search(text) is not None


def _cut_off(names: Names) -> Iterator[CutOff]:
    """Yield the switches after which, up to transformers 4.57, no block's input has a gradient.

    There `gradient_checkpointing_enable` makes the embeddings' output require gradient only if adapters were added
    before by transformers' own `add_adapter`, and PEFT's `get_peft_model` does so only if checkpointing is already on.
    """
    modes = {mode.mode for mode in checkpoint_modes(names)}
    trainers = [*names.trainer_origins()]
    if "non_reentrant" in modes or any(not origin.startswith("transformers.") for origin in trainers):
        return
    frozen = list(_frozen(names))
    switches = list(checkpoint_switches(names))
    called = {
        (at.scope, call.lineno): dotted(call.func.value)
        for at, call in names.calls
        if isinstance(call.func, ast.Attribute) and tail(call.func) in SWITCH_ON
    }
    for switch in switches:
        reentrant = "reentrant" in modes
        if switch.options and not reentrant:
            continue
        place = (switch.spot.scope, switch.spot.span.line)
        for at, node, model, means in frozen:
            if switch.kind == "method":
                is_frozen_first = node.lineno < switch.spot.span.line
                cut = called.get(place) == model and at.scope == switch.spot.scope
                cut = cut and (means == "embeddings" or is_frozen_first is (means == "get_peft_model"))
            else:
                cut = bool(trainers) and means != "add_adapter" and not any(each.kind == "method" for each in switches)
            if cut:
                yield CutOff(switch.spot, switch.text, model, ast.unparse(node)[:60], node.lineno, reentrant)
                break


def _frozen(names: Names) -> Iterator[tuple[ScriptNode, ast.expr, str, str]]:
    """Yield the nodes that freeze the parameters before a model's first block, each with the model and the means."""
    for place, call in names.calls:
        name, owner = tail(call.func), call.func.value if isinstance(call.func, ast.Attribute) else None
        if place.conditional:
            continue
        if name == "get_peft_model":
            targets = [target for target, made in names.assigned.items() for _, value in made if value is call]
            yield from ((place, call.func, target, name) for target in targets)
        elif name == "add_adapter" and owner:
            yield place, call.func, dotted(owner), name
        elif name == "requires_grad_" and owner and [ast.unparse(value) for value in call.args] == ["False"]:
            yield from _embeddings(names, place, owner)
    for place in names.places:
        match place.node:
            case ast.For(
                iter=ast.Call(func=ast.Attribute(value=owner, attr="parameters")), body=[ast.Assign() as body]
            ):
                if ast.unparse(body).endswith(".requires_grad = False") and not place.conditional:
                    yield from _embeddings(names, place, owner)


def _embeddings(names: Names, place: ScriptNode, owner: ast.expr) -> Iterator[tuple[ScriptNode, ast.expr, str, str]]:
    """Yield a frozen module if it is a model's embeddings, or a whole model that trains some of its blocks again."""
    text = ast.unparse(owner)
    model = text.partition(".")[0]
    if _EMBEDDINGS.search(text) or (text == model and any(_trains_blocks(at.node, model) for at in names.places)):
        yield place, owner, model, "embeddings"


def _trains_blocks(node: ast.AST, model: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="requires_grad_"), args=args):
            trained = [ast.unparse(value) for value in args] in ([], ["True"])
        case ast.For(iter=owner, body=body):
            trained = any(_SET_TRAINED.search(ast.unparse(statement)) for statement in body)
        case _:
            return False
    return trained and ast.unparse(owner).startswith(f"{model}.") and bool(_BLOCKS.search(ast.unparse(owner)))


def _writes(function: Function) -> Iterator[LeafWrite]:
    embeddings: dict[str, ast.expr] = {}
    hidden = {
        id(inner)
        for node in statements_below(function)
        if isinstance(node, Function | ast.ClassDef)
        or (isinstance(node, ast.With) and any(drops_gradient(item.context_expr) for item in node.items))
        for inner in statements_below(node)
    }
    statements = [node for node in statements_below(function) if isinstance(node, ast.stmt) and id(node) not in hidden]
    for statement in sorted(statements, key=lambda node: node.lineno):
        written = _written(statement)
        if isinstance(written, ast.Name) and written.id in embeddings:
            made = embeddings.pop(written.id)
            spot = Spot(span_of(statement), statement.lineno, function.name)
            yield LeafWrite(spot, written.id, ast.unparse(made), made.lineno)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                embeddings.pop(name, None)
                match value:
                    case ast.Call(func=func, args=[_]) if _EMBEDDINGS.search(ast.unparse(func)):
                        embeddings[name] = func


def _written(statement: ast.stmt) -> ast.expr | None:
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=written)]) | ast.AugAssign(target=ast.Subscript(value=written)):
            return written
        case ast.AugAssign(target=written):
            return written
        case (
            ast.Expr(value=ast.Call(func=ast.Attribute(value=written, attr=method)))
            | ast.Assign(value=ast.Call(func=ast.Attribute(value=written, attr=method)))
        ) if method.endswith("_") and not method.endswith("__") and method not in _NOT_WRITING:
            return written
    return None


CUT_OFF = FileFact[tuple[CutOff, ...]](
    "cut_off",
    lambda file: tuple(_cut_off(names_of(file.tree))),
    nothing=(),
    signs=("checkpointing",),
    worth=_may_cut_off,
)
"""Switches after which frozen embeddings leave the blocks without an input gradient."""
LEAF_WRITES = FileFact[tuple[LeafWrite, ...]](
    "leaf_writes",
    lambda file: tuple(
        write
        for node in statements_below(file.tree)
        if isinstance(node, Function)
        and not (_RUNS_WITHOUT_GRADIENT.search(node.name) or any(map(drops_gradient, node.decorator_list)))
        for write in _writes(node)
    ),
    nothing=(),
    signs=_EMBEDDING_CALLS,
    worth=_may_write,
)
"""In-place writes into what an embedding returned."""
