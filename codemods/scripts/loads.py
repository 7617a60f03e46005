"""Where a script loads a model that is split over all devices: `from_pretrained(..., device_map="auto")`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ckpt_surgery.codemods.facts.script_facts import SplitLoad, Spot
from ckpt_surgery.codemods.facts.syntax import dotted, span_of, walk
from ckpt_surgery.codemods.scripts.names import (
    Function,
    Names,
    inner_statements,
    is_distributed_data_parallel,
    scopes,
    tail,
)

SPLITTING = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
_DECIDES = re.compile(r"rank|world|distributed|ddp|num_processes|device_count|parallel|deepspeed|fsdp", re.I)
"""A test like this around a load means that the script itself takes care of several processes."""
_TRAINS = {"prepare", "get_peft_model", "prepare_model_for_kbit_training", "train", "parameters"}
_DOES_NOT_TRAIN = {"merge_and_unload", "eval", "requires_grad_"}


def split_loads(names: Names) -> Iterator[SplitLoad]:
    """The loads that split a model over devices, of models that are or may be trained."""
    options = _options(names)
    module = list(_statements(names.tree.body))
    for scope, body in scopes(names):
        statements = list(_statements(body))
        for statement in statements:
            for call in walk(statement):
                if isinstance(call, ast.Call) and tail(call.func) == "from_pretrained":
                    value = _device_map(call, statements)
                    placement = _constant(value, statements) or _constant(value, module)
                    default = options.get(value.attr, "") if isinstance(value, ast.Attribute) else ""
                    if (placement or default) and not _is_not_trained(names, statement, statements):
                        spot = Spot(span_of(call), statement.lineno, scope)
                        yield SplitLoad(spot, ast.unparse(call.func), placement or default, not placement)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The simple statements of a scope, without those under a test of the number of processes."""
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef):
            continue
        if isinstance(statement, ast.If) and _DECIDES.search(ast.unparse(statement.test)):
            # A name assigned there is not constant any more; a load there is the script's own decision.
            yield from (_forgotten(inner) for inner in walk(statement) if isinstance(inner, ast.Assign))
            continue
        inner = inner_statements(statement)
        if inner:
            yield from _statements(inner)
        else:
            yield statement


def _forgotten(statement: ast.Assign) -> ast.Assign:
    """The same assignment, of an unknown value."""
    unknown = ast.Constant(value=None)
    return ast.copy_location(ast.Assign(targets=statement.targets, value=unknown), statement)


def _device_map(call: ast.Call, statements: Sequence[ast.stmt]) -> ast.expr | None:
    """The value of `device_map`, also from a dict that is unpacked."""
    for keyword in call.keywords:
        if keyword.arg == "device_map":
            return keyword.value
    for keyword in call.keywords:
        if keyword.arg is None:
            values = [keyword.value] if not isinstance(keyword.value, ast.Name) else []
            values = values or list(_assigned(dotted(keyword.value), statements))
            entries = [entry for value in values if (entry := _entry(value))]
            entries += _assigned(f"{dotted(keyword.value)}[device_map]", statements)
            if entries:
                return entries[-1]
    return None


def _entry(value: ast.expr) -> ast.expr | None:
    """`device_map` of a dict that is written out."""
    match value:
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return next(
                (entry for key, entry in pairs if isinstance(key, ast.Constant) and key.value == "device_map"), None
            )
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            return next((keyword.value for keyword in keywords if keyword.arg == "device_map"), None)
    return None


def _assigned(name: str, statements: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    """Every value that is assigned to a name, or to an entry of a dict (`name[key]`)."""
    for statement in statements:
        match statement:
            case ast.Assign(targets=targets, value=value) if any(_target(target) == name for target in targets):
                yield value
            case ast.AnnAssign(target=target, value=ast.expr() as value) if _target(target) == name:
                yield value


def _target(node: ast.expr) -> str:
    match node:
        case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
            return f"{dotted(value)}[{key}]"
    return dotted(node)


def _constant(value: ast.expr | None, statements: Sequence[ast.stmt]) -> str:
    """The splitting placement that a value surely is; empty for any other value."""
    match value:
        case ast.Constant(value=str(text)) if text in SPLITTING:
            return text
        case ast.Name(id=name):
            placements = [_constant(assigned, ()) for assigned in _assigned(name, statements)]
            return placements[0] if placements and all(placements) else ""
    return ""


def _options(names: Names) -> dict[str, str]:
    """Options of the script whose name has `device_map` and whose default splits, unless the script sets them."""
    options: dict[str, str] = {}
    changed: set[str] = set()
    for node in names.nodes:
        match node:
            case ast.ClassDef(body=body):
                for statement in body:
                    match statement:
                        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                            options[name] = _constant(_default(value) or value, ())
            case ast.Call(func=func, args=[ast.Constant(value=str(flag)), *_]) if tail(func) == "add_argument":
                options[flag.lstrip("-").replace("-", "_")] = _constant(_default(node), ())
            case ast.Assign(targets=[ast.Attribute(attr=name)]):
                changed.add(name)
    return {name: value for name, value in options.items() if "device_map" in name and value and name not in changed}


def _default(value: ast.expr) -> ast.expr | None:
    keywords = value.keywords if isinstance(value, ast.Call) else []
    return next((keyword.value for keyword in keywords if keyword.arg == "default"), None)


def _is_not_trained(names: Names, statement: ast.stmt, statements: Sequence[ast.stmt]) -> bool:
    """Whether the loaded model is only merged or evaluated, and not trained."""
    uses = {node.attr for node in walk(statement) if isinstance(node, ast.Attribute)}
    targets = [target for target in getattr(statement, "targets", ()) if isinstance(target, ast.Name)]
    name = targets[0].id if targets else None
    for call in (node for other in statements for node in walk(other) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and dotted(call.func.value) == name:
            uses.add(call.func.attr)
        elif any(dotted(value) == name for value in (*call.args, *(keyword.value for keyword in call.keywords))):
            trainer = tail(call.func).endswith("Trainer") or is_distributed_data_parallel(names.origin(call.func))
            uses.add("train" if trainer else tail(call.func))
    return bool(uses & _DOES_NOT_TRAIN) and not uses & _TRAINS
