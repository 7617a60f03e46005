"""Private names of torch are in one file: any that the package uses elsewhere is reported with its place."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_layout import ROOT, STATIC, modules, part_of

NAMES = "ckpt_surgery.torch_names"
OF_OTHERS = {
    "_attn_implementation": "transformers",
    "_class_to_module": "transformers",
    "_exit": "os",
    "_from_config": "transformers",
    "_get_feat_extract_output_lengths": "transformers",
    "_getframe": "sys",
    "_hf_peft_config_loaded": "transformers",
    "_make": "named tuples",
    "_value_": "enums",
}
"""Private attributes of others, with their owners."""


_ASKS = {"attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "setattr"}
"""The functions that take an attribute's name as text."""
_AS_TEXT = {"_backward", "_dynamo", "_engine_run_backward", "_fused_dropout"}
"""Names only compared with torch's text: one that is gone equals nothing."""


def is_private(name: str) -> bool:
    """Tell whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_names(root: Path) -> Iterator[tuple[str, str]]:
    """Find private names that a file of the package under `root` uses and does not define.

    A name that is reached from torch is whole, "torch._C"; an attribute of some object is bare. The static half,
    which knows no torch, is left out.
    """
    for module, path in modules(root).items():
        if module == NAMES or part_of(module) in STATIC:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        aliases, own = dict(_imported(tree)), set(_defined(tree))
        for node in ast.walk(tree):
            for name in _used(node, aliases):
                if name.startswith("torch.") or name not in own:
                    yield f"{path.relative_to(root)}:{node.lineno}", name  # type: ignore[attr-defined]


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Map the names that imports give a file to their full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _defined(tree: ast.AST) -> Iterator[str]:
    """Collect the private names that a file defines: functions, variables, attributes of its objects, slots."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=slots)):
                yield from (slot.value for slot in slots if isinstance(slot, ast.Constant))  # type: ignore[misc]


def _used(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    """Yield the private names of torch or of an object that one node uses."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names if _of_torch(alias.name))
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield from (whole for alias in names if _of_torch(whole := f"{module}.{alias.name}"))
        case ast.Attribute(value=value, attr=name) if is_private(name):
            whole = _path(node, aliases)
            if whole.partition(".")[0] == "torch":
                yield whole
            elif not (isinstance(value, ast.Call) and ast.unparse(value) == "super()"):
                yield name
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=args) if function in _ASKS:
            texts = (argument.value for argument in args if isinstance(argument, ast.Constant))
            yield from (text for text in texts if isinstance(text, str) and is_private(text))
        case ast.Constant(value=str(text)) if _of_torch(text):
            yield text


def texts(root: Path, members: set[str]) -> Iterator[tuple[str, str]]:
    """Find texts and names of arguments that name a private member of torch, with their places.

    A name that the file also defines itself is found too.
    """
    for module, path in modules(root).items():
        if module == NAMES or part_of(module) in STATIC:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = set(_defined(tree))
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(name)) | ast.keyword(arg=str(name)) if name in members - own:
                    yield f"{path.relative_to(root)}:{node.lineno}", name


def members_of_torch() -> set[str]:
    """Collect the private names of torch's modules and objects, and of its functions' arguments."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils import checkpoint
    from torch.utils._python_dispatch import TorchDispatchMode

    module = torch.nn.Linear(2, 2)
    leaf = torch.ones(2, requires_grad=True)
    modes = (TorchDispatchMode, TorchFunctionMode)
    objects = (
        *(leaf, leaf.untyped_storage(), (leaf + 1).grad_fn, torch.optim.SGD([leaf]), torch.Generator()),
        *(module, torch.compile(module), torch.nn.parallel.DistributedDataParallel(module), *modes),
        *(torch, torch._C, torch.autograd.graph, checkpoint, torch.ops.aten, torch.ops.aten.add.Tensor),
    )
    functions = [function for function in vars(torch.nn.functional).values() if inspect.isfunction(function)]
    names = {name for thing in objects for name in dir(thing)}
    names |= {name for function in functions for name in inspect.signature(function).parameters}
    return set(filter(is_private, names))


def _of_torch(name: str) -> bool:
    top, *below = name.split(".")
    return top == "torch" and any(map(is_private, below))


def _path(node: ast.expr, aliases: dict[str, str]) -> str:
    """Return the dotted path of an expression from its import, or else its source."""
    match node:
        case ast.Attribute(value=value, attr=name):
            return f"{_path(value, aliases)}.{name}"
        case ast.Name(id=name):
            return aliases.get(name, f"?{name}")
    return "?"


def faults(root: Path, attributes: set[str]) -> list[str]:
    """Find private names of torch, or of unknown origin, outside of the file for them."""
    return [
        f"{place}: {name}" for place, name in private_names(root) if name not in attributes and name not in OF_OTHERS
    ]


def attributes() -> set[str]:
    """Return the attributes of torch's objects that the file for private names lists."""
    tree = ast.parse((ROOT / "ckpt_surgery" / "torch_names.py").read_text(encoding="utf-8"))
    listed = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and _is_listing(node)]
    texts = (node.value for part in listed for node in ast.walk(part) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and is_private(text)}


def _is_listing(node: ast.Assign | ast.AnnAssign) -> bool:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return isinstance(target, ast.Name) and target.id in ("ATTRIBUTES", "CALL_HOOKS")


def test_private_names_of_torch_are_in_one_file() -> None:
    assert faults(ROOT, attributes()) == []


@pytest.mark.torch
def test_no_text_names_another_member_of_torch(one_rank: None) -> None:
    left = {name: place for place, name in texts(ROOT, members_of_torch() - attributes())}
    assert left.keys() == _AS_TEXT, left


@pytest.mark.parametrize(
    "code", ["vars(m)['_planted']", "for name in ('_planted', 'x'): getattr(m, name)", "f(_planted=1)"]
)
def test_a_new_text_is_reported(tmp_path: Path, code: str) -> None:
    (tmp_path / "ckpt_surgery").mkdir()
    (tmp_path / "ckpt_surgery" / "planted.py").write_text(f"def of(m):\n    {code}\n")
    assert list(texts(tmp_path, {"_planted"})) == [("ckpt_surgery/planted.py:2", "_planted")]


def test_each_name_that_is_listed_is_used() -> None:
    used = {name for _, name in (*private_names(ROOT), *texts(ROOT, attributes()))}
    here = {"_backward_pre_hooks", "_compiled_call_impl", "_forward_pre_hooks"}  # in the file itself
    assert attributes() - used - here == set()
    assert OF_OTHERS.keys() - used == set()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import torch\ntorch._C._planted()", "torch._C"),
        ("import torch._planted", "torch._planted"),
        ("from torch import nn\nnn.modules.conv._Planted", "torch.nn.modules.conv._Planted"),
        ("def of(tensor): return tensor._planted", "_planted"),
        ("def of(tensor): return getattr(tensor, '_planted', None)", "_planted"),
        ("from importlib import import_module\nimport_module('torch._planted')", "torch._planted"),
        ("import operator\nof = operator.attrgetter('_planted')", "_planted"),
    ],
)
def test_a_new_one_is_reported(tmp_path: Path, code: str, name: str) -> None:
    package = tmp_path / "ckpt_surgery"
    package.mkdir()
    (package / "torch_names.py").write_text("import torch\ntorch._fine\n")
    (package / "planted.py").write_text(f"class Ours:\n    def of(self):\n        return self._own\n\n\n{code}\n")
    assert {fault.partition(": ")[2] for fault in faults(tmp_path, {"_known"})} >= {name}
    assert all(fault.startswith("ckpt_surgery/planted.py:") for fault in faults(tmp_path, {"_known"}))


@pytest.mark.torch
def test_torch_has_them_all(one_rank: None) -> None:
    torch = pytest.importorskip("torch")
    from ckpt_surgery.torch_names import ATTRIBUTES

    module = torch.nn.Linear(2, 2)
    leaf = torch.ones(2, requires_grad=True)
    objects: dict[str, Any] = {
        "Tensor": leaf,
        "UntypedStorage": leaf.untyped_storage(),
        "Module": module,
        "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel(module),
        "OptimizedModule": torch.compile(module),
        "Node": (leaf + 1).grad_fn,
        "OpOverload": torch.ops.aten.add.Tensor,
        "Reducer": torch.nn.parallel.DistributedDataParallel(module).reducer,
    }
    missing = {name for kind, names in ATTRIBUTES.items() for name in names if not hasattr(objects[kind], name)}
    assert missing == set()


@pytest.mark.torch
def test_an_operator_that_torch_has_not_is_none() -> None:
    torch = pytest.importorskip("torch")
    from ckpt_surgery.torch_names import _operator

    assert _operator("_taken_away_in_a_later_release") is None
    assert _operator("_unsafe_view") is torch.ops.aten._unsafe_view.default


WITHOUT_OPERATORS = """
import sys
from ckpt_surgery import torch_names
for name, value in list(vars(torch_names).items()):
    if isinstance(value, torch_names.torch._ops.OpOverload):
        setattr(torch_names, name, None)
from ckpt_surgery.cli.main import main
sys.exit(main(["explain", "llama", "--tokens", "64"]))
"""


@pytest.mark.torch
def test_steps_run_on_shapes_without_any_of_the_operators(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_OPERATORS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot run on shapes" in done.stdout + done.stderr) == (0, False)
