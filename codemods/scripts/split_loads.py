"""Find where a script loads a model that is split over all devices: `from_pretrained(..., device_map="auto")`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ckpt_surgery.codemods.facts.script_facts import SplitLoad
from ckpt_surgery.codemods.facts.syntax import dotted, values_of
from ckpt_surgery.codemods.scripts.names import Names, ScriptNode, entries, tail

SPLITTING = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
"""The values of `device_map` that spread a model over all devices."""
_PROCESSES = re.compile(r"rank|world|distributed|ddp|num_processes|device_count|parallel|deepspeed|fsdp", re.I)
"""A script with such a test around a load distinguishes between processes itself."""
_TRAINS = {"prepare", "get_peft_model", "prepare_model_for_kbit_training", "train", "parameters"}
_DOES_NOT_TRAIN = {"merge_and_unload", "eval", "requires_grad_"}
_UNKNOWN = ast.Constant(value=None)


def split_loads(names: Names) -> Iterator[SplitLoad]:
    """Yield the loads that split a model over all devices, unless it is surely not trained."""
    changed = {name.rpartition(".")[2] for name in names.assigned if "." in name}
    options = {
        name: _placement([default])
        for name, _, default in names.options()
        if "device_map" in name and name not in changed
    }
    for place, call in names.calls:
        if tail(call.func) != "from_pretrained" or place.tested_for(_PROCESSES):
            continue
        value = _device_map(names, place.scope, call)
        placement = _placement([value])
        if isinstance(value, ast.Name):
            placement = _placement(_assigned(names, value.id, place.scope)) or _placement(_assigned(names, value.id))
        default = options.get(value.attr, "") if isinstance(value, ast.Attribute) else ""
        if (placement or default) and not _is_not_trained(names, place):
            yield SplitLoad(place.spot(call), ast.unparse(call.func), placement or default, not placement)


def _assigned(names: Names, name: str, scope: str = "") -> list[ast.expr]:
    """Return the values that a scope assigns to a name; `_UNKNOWN` for one under a test of processes."""
    assigned = names.assigned.get(name, ())
    return [_UNKNOWN if place.tested_for(_PROCESSES) else value for place, value in assigned if place.scope == scope]


def _device_map(names: Names, scope: str, call: ast.Call) -> ast.expr | None:
    """Return the value of `device_map`, also from a dict that is unpacked."""
    unpacked: ast.expr | None = None
    for keyword in call.keywords:
        if keyword.arg == "device_map":
            return keyword.value
        if keyword.arg is None and unpacked is None:
            name = dotted(keyword.value)
            dicts = _assigned(names, name, scope) if name else [keyword.value]
            values = [entry for options in dicts if (entry := entries(options).get("device_map"))]
            values += _assigned(names, f"{name}['device_map']", scope)
            unpacked = values[-1] if values else None
    return unpacked


def _placement(values: Sequence[ast.expr | None]) -> str:
    """Return the first value if all of them split a model; empty otherwise."""
    texts = [value.value if isinstance(value, ast.Constant) else None for value in values]
    return next((text for text in texts if isinstance(text, str)), "") if texts and SPLITTING.issuperset(texts) else ""


def _is_not_trained(names: Names, load: ScriptNode) -> bool:
    bound = {
        name for name, assigned in names.assigned.items() for place, _ in assigned if place.node is load.statement
    }
    uses: set[str] = set()
    for place, call in names.calls:
        if place.scope != load.scope or place.tested_for(_PROCESSES) or hasattr(place.statement, "body"):
            continue  # the head of a loop or a test trains nothing
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if place.statement is load.statement or (owner and dotted(owner) in bound):
            uses.add(tail(call.func))
        elif any(dotted(value) in bound for value in values_of(call)):
            trainer = tail(call.func).endswith("Trainer") or names.is_wrapper(call.func)
            uses.add("train" if trainer else tail(call.func))
    return bool(uses & _DOES_NOT_TRAIN) and not uses & _TRAINS
