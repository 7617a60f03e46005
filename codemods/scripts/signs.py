"""What shows that a script trains, and that it does so in several processes. The one place for such signs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.script_facts import ScriptFacts, Sign, SignKind
from ckpt_surgery.codemods.facts.syntax import dotted
from ckpt_surgery.codemods.scripts.names import (
    Names,
    is_accelerator,
    is_distributed_data_parallel,
    nodes_and_tests,
    tail,
)

_LAUNCH = {"LOCAL_RANK", "WORLD_SIZE", "RANK"}
_LAUNCHER = re.compile(r"^[^\n]*(torchrun|accelerate launch|torch\.distributed\.(?:run|launch))\b", re.M)


def signs(names: Names, text: str) -> Iterator[Sign]:
    """The signs of a script, each kind in the order of the lines."""
    prepares = False
    backward: Sign | None = None
    trainers = _trainers(names)
    if "peft" in text or "add_adapter" in text:
        yield from _adapters(names)
    for node in names.nodes:
        match node:
            case ast.Call(func=func):
                origin = names.origin(func)
                if is_distributed_data_parallel(origin):
                    yield Sign("ddp", dotted(func), node.lineno)
                elif tail(func) == "init_process_group":
                    yield Sign("group", dotted(func), node.lineno)
                elif tail(func) == "prepare" and isinstance(func, ast.Attribute) and is_accelerator(func.value):
                    prepares = True
                elif tail(func) == "backward" and isinstance(func, ast.Attribute):
                    yield Sign("backward", "backward", node.lineno)
                    if is_accelerator(func.value):
                        backward = backward or Sign("accelerate", dotted(func), node.lineno)
                elif tail(func) == "train" and isinstance(func, ast.Attribute):
                    is_new = isinstance(func.value, ast.Call) and tail(func.value.func).endswith("Trainer")
                    if is_new or dotted(func.value) in trainers:
                        yield Sign("trainer", ast.unparse(func) if not is_new else "Trainer(...).train", node.lineno)
                if _reads_environment(node):
                    yield Sign("launch", ast.unparse(node.args[0]).strip("'\""), node.lineno)
                for keyword in node.keywords:
                    if keyword.arg and keyword.arg.startswith("ddp_"):
                        yield Sign("arguments", keyword.arg, keyword.value.lineno)
            case ast.Subscript(value=value, slice=ast.Constant(value=str(key))) if key in _LAUNCH:
                if tail(value) == "environ":
                    yield Sign("launch", key, node.lineno)
    if prepares and backward:
        yield backward
    for match in _LAUNCHER.finditer(text):
        yield Sign("launcher", match.group(1), text.count("\n", 0, match.start(1)) + 1)


def data_parallel(script: ScriptFacts) -> Sign | None:
    """What shows that a script trains under DistributedDataParallel, as a launched Trainer does too."""
    surely = script.sign("ddp", "accelerate", "arguments")
    return surely or (script.sign("launch", "launcher", "group") if script.sign("trainer") else None)


def several_processes(script: ScriptFacts) -> Sign | None:
    """What shows that a script trains in several processes, under whatever wrapper."""
    trains = script.sign("backward", "trainer")
    return data_parallel(script) or (script.sign("launch", "launcher", "group") if trains else None)


def sign_text(sign: Sign) -> str:
    """The words for a sign in a message."""
    return f"{sign.text} on line {sign.line}"


def _reads_environment(call: ast.Call) -> bool:
    """`os.environ.get("LOCAL_RANK")` or `os.getenv("LOCAL_RANK")`."""
    if not call.args or not isinstance(call.args[0], ast.Constant) or call.args[0].value not in _LAUNCH:
        return False
    func = call.func
    return tail(func) == "getenv" or (isinstance(func, ast.Attribute) and tail(func.value) == "environ")


def trainer_origins(names: Names) -> Iterator[str]:
    """The full names of the Trainers that a script makes; for a class of the script, those that it extends."""
    for node in names.nodes:
        if isinstance(node, ast.Call) and tail(node.func).endswith("Trainer"):
            cls = names.classes.get(dotted(node.func))
            if cls is None:
                yield names.origin(node.func)
            else:
                bases = [names.origin(base) for ancestor in names.lineage(cls) for base in ancestor.bases]
                yield from (base for base in bases if base not in names.classes)


def _adapters(names: Names) -> Iterator[Sign]:
    """What shows that adapters of PEFT are trained on a frozen model, surely or if an option says so."""
    calls = [(node, under_test) for node, under_test in nodes_and_tests(names.tree) if isinstance(node, ast.Call)]
    conditional = {id(call) for call, under_test in calls if under_test}
    for call, under_test in calls:
        name = tail(call.func)
        if name in ("get_peft_model", "add_adapter"):
            yield Sign("some_adapters" if under_test else "adapters", name, call.lineno)
        elif name.endswith("Trainer"):
            for keyword in call.keywords:
                if keyword.arg == "peft_config" and ast.unparse(keyword.value) != "None":
                    made = _values(names, keyword.value)
                    sure = all(_makes_config(value) and id(value) not in conditional for value in made)
                    kind: SignKind = "adapters" if sure and not under_test else "some_adapters"
                    yield Sign(kind, "peft_config", keyword.value.lineno)


def _values(names: Names, value: ast.expr) -> list[ast.expr]:
    """All that the file assigns to a name; for anything else the expression itself."""
    if not isinstance(value, ast.Name):
        return [value]
    assigned = [
        node.value
        for node in names.nodes
        if isinstance(node, ast.Assign) and any(dotted(target) == value.id for target in node.targets)
    ]
    return assigned or [value]


def _makes_config(value: ast.expr) -> bool:
    """`LoraConfig(...)` and its like; not a function that may return None."""
    return isinstance(value, ast.Call) and tail(value.func).endswith("Config")


def _trainers(names: Names) -> set[str]:
    """The names that a `...Trainer(...)` is bound to."""
    bound: set[str] = set()
    for node in names.nodes:
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=func)) if tail(func).endswith("Trainer"):
                bound.add(dotted(target))
    return bound - {""}
