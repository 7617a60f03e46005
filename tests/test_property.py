"""`apply` on any Python file changes nothing, or yields a file that parses and that a second run leaves alone.

Shown on generated model code, whose repaired calls are also bound through the block's signature, and on a sample of
the standard library and the installed packages.
"""

from __future__ import annotations

import ast
import os
import random
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_surgery import apply, check
from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.static.results import ApplyResult

SAMPLE = 400
BOUNDED = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("CKPT_SURGERY_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


# -- generated models

NAMES = (
    "attention_mask",
    "past_key_values",
    "encoder_hidden_states",
    "position_bias",
    "output_attentions",
    "use_cache",
)
STACKS = (
    "self.layers = nn.ModuleList([FooLayer(config) for _ in range(4)])",
    "layers = []\nfor _ in range(4):\n    layers.append(FooLayer(config))\nself.layers = nn.ModuleList(layers)",
    "self.layers = nn.ModuleList()\nfor _ in range(4):\n    self.layers.append(FooLayer(config))",
    "self.layers = nn.ModuleDict({str(i): FooLayer(config) for i in range(4)})",
    "self.layers = nn.Sequential(*[FooLayer(config) for _ in range(4)])",
)
LOOPS = (
    ("for layer in {}:", "layer"),
    ("for index, layer in enumerate({}):", "layer"),
    ("for index in range(len({0})):", "self.layers[index]"),
    ("for layer, other in zip({0}, {0}):", "layer"),
    ("for layer in {}[1:]:", "layer"),
)
TESTS = (
    "self.gradient_checkpointing and self.training",
    'getattr(self.config, "gradient_checkpointing", False) and self.training',
    "self._requires_grad and self.gradient_checkpointing and self.training",
    "self.gradient_checkpointing and self.training and use_cache",
    "(\n    self.gradient_checkpointing  # on\n    and self.training\n)",
)
CALLEES = ("{}.__call__", "{}.forward", "{}", "partial({}.__call__, use_cache=False)", "create_custom_forward({})")
BASES = ("nn.Module", "GradientCheckpointingLayer", "FooMixin, nn.Module", "nn.Module, FooMixin", "torch.nn.Module")
EXTRAS = ("", "# note", "x = 'ü∑'", 'x = """a\n  b\n"""', "if use_cache:\n    use_cache = False", "logger.info('x')")


def indented(text: str, size: int) -> str:
    """Indent `text`, but for the lines inside its strings."""
    lines = text.split("\n")
    inside = '"""' in lines[0] and lines[0].count('"""') == 1
    return "\n".join(line if inside and number else " " * size + line for number, line in enumerate(lines))


@st.composite
def calls(draw: st.DrawFn, params: list[str]) -> list[str]:
    """Draw a call's arguments that bind: some by position, some of the rest by keyword in any order."""
    count = draw(st.integers(0, len(params)))
    values = st.sampled_from([*params, "None", "True", "(use_cache)", "attention_mask[0]", "f(a, b=(1, 2))", "'ü, ('"])
    arguments = [params[0] if position == 0 else draw(values) for position in range(count)]
    rest = draw(st.permutations(params[count:]))
    keywords = [f"{name}={draw(values)}" for name in rest if name == "hidden_states" or draw(st.booleans())]
    return [*arguments, *keywords, *draw(st.sampled_from(([], [], [], ["**kwargs"])))]


@st.composite
def call_texts(draw: st.DrawFn, callee: str, params: list[str]) -> str:
    """Draw a call on one line or on many, with comments on any of its arguments."""
    arguments = draw(calls(params))
    if draw(st.booleans()):
        return f"{callee}({', '.join(arguments)})"
    comments = st.sampled_from(("", "", "  # why", "  # ü"))
    above = st.sampled_from(("", "", "    # above\n"))
    lines = [f"{draw(above)}    {argument},{draw(comments)}\n" for argument in arguments]
    return f"{callee}({draw(comments)}\n{''.join(lines)})"


@st.composite
def models(draw: st.DrawFn) -> str:
    """Draw a model's file: a block, its stack, and a forward that calls it directly or by an inline branch."""
    params = ["hidden_states", *draw(st.permutations(NAMES))[: draw(st.integers(1, 6))]]
    base = draw(st.sampled_from(BASES))
    head, callee = draw(st.sampled_from(LOOPS))
    body = []
    for _ in range(draw(st.integers(1, 2))):
        target = draw(st.sampled_from(("hidden_states = {}", "hidden_states = {}[0]", "x = {} + hidden_states")))
        direct = target.format(draw(call_texts(callee, params)))
        extra = draw(st.sampled_from(EXTRAS))
        if draw(st.booleans()):
            body += [direct, extra]
            continue
        test, wrapped = draw(st.sampled_from(TESTS)), draw(st.sampled_from(CALLEES)).format(callee)
        checkpointed = f"hidden_states = self._gradient_checkpointing_func({wrapped}, hidden_states)"
        parts = [f"if {test}:", indented(extra, 4), indented(checkpointed, 4), "else:", indented(direct, 4)]
        parts.insert(draw(st.sampled_from((2, 4, 5))), indented(draw(st.sampled_from(EXTRAS)), 4))
        body.append("\n".join(part for part in parts if part.strip()))
    loop = "\n".join([head.format("self.layers"), *(indented(statement, 4) for statement in body if statement)])
    later = draw(st.sampled_from(("", "        if use_cache:\n            hidden_states = x\n")))
    signature = ", ".join(f"{name}=None" if number else name for number, name in enumerate(params))
    flag = draw(st.sampled_from(("    supports_gradient_checkpointing = True\n", "    pass\n")))
    text = f"""\
import torch
from functools import partial
from torch import nn

from ...modeling_utils import PreTrainedModel
{"from ...modeling_layers import GradientCheckpointingLayer" if base.startswith("Grad") else ""}


class FooLayer({base}):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention(config)

    def forward(self, {signature}, **kwargs):
        return hidden_states


class FooModel(PreTrainedModel):
{flag}
    def __init__(self, config):
        super().__init__(config)
{indented(draw(st.sampled_from(STACKS)), 8)}

    def forward(self, hidden_states, use_cache=None, **kwargs):
{indented(loop, 8)}
{later}        return hidden_states
"""
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def settled(text: str, unsafe: bool) -> tuple[ApplyResult, str]:
    """Repair a text in a separate folder; assert that the result parses and settles."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "models" / "foo" / "modeling_foo.py"
        path.parent.mkdir(parents=True)
        path.write_bytes(text.encode())
        result = apply([path], unsafe=unsafe, jobs=1, cache=False)
        after = path.read_bytes().decode()
        ast.parse(after)
        again = apply([path], unsafe=unsafe, jobs=1, cache=False)
        assert [change.diff for change in again.changes] == []
        left = check([path], jobs=1, cache=False).findings
        assert not [finding for finding in left if finding.applicability is Applicability.SAFE and finding.repairs]
    return result, after


def bound(text: str) -> list[list[tuple[str, str]]]:
    """Bind every block call outside inline branches; return parameter and argument in the parameters' order."""
    tree = ast.parse(text)
    layer = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "FooLayer")
    forward = next(node for node in layer.body if isinstance(node, ast.FunctionDef) and node.name == "forward")
    names = [argument.arg for argument in forward.args.args][1:]
    bindings = []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        if ast.unparse(node.func) in ("layer", "self.layers[index]"):
            pairs = dict(zip(names, map(ast.unparse, node.args), strict=False))
            pairs.update({keyword.arg or "**": ast.unparse(keyword.value) for keyword in node.keywords})
            bindings.append(sorted(pairs.items()))
    return bindings


def comments(text: str) -> set[str]:
    return {line.split("# ", 1)[1].strip() for line in text.split("\n") if "# " in line and "'" not in line}


@BOUNDED
@given(models(), st.booleans())
def test_a_generated_model_is_repaired_to_one_that_parses_and_settles(text: str, unsafe: bool) -> None:
    if not parses(text):
        return
    result, after = settled(text, unsafe)
    assert result.problems == ()
    assert result.notes == ()
    ending = "\r\n" if "\r\n" in text else "\n"
    assert after.replace(ending, "").count("\n") == 0 or '"""' in text
    assert comments(text) <= comments(after)


@BOUNDED
@given(models(), st.booleans())
def test_direct_calls_of_a_generated_model_keep_each_parameters_argument(text: str, unsafe: bool) -> None:
    if not parses(text):
        return
    _, after = settled(text, unsafe)
    had, has = bound(text), bound(after)
    assert len(had) == len(has)
    for one, other in zip(had, has, strict=True):
        filled = set(other) - set(one)
        assert set(one) <= set(other)
        assert {value for _, value in filled} <= {"None"}


@BOUNDED
@given(st.text(max_size=400))
def test_any_text_is_a_problem_or_left_alone(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "modeling_any.py"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        result = apply([path], jobs=1, cache=False)
        assert result.changes == ()
        assert all("\n" not in str(problem) for problem in result.problems)


# -- the standard library and what is installed


@cache
def corpus() -> tuple[Path, ...]:
    """List a fixed sample of the Python files of this interpreter's library and packages."""
    folders = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    files = sorted({path for folder in folders for path in folder.rglob("*.py") if path.is_file()})
    models_first = [path for path in files if path.name.startswith(("modeling_", "modular_"))]
    chosen = random.Random(0)
    some = chosen.sample(models_first, min(len(models_first), SAMPLE // 4))
    return tuple(sorted({*some, *chosen.sample(files, min(len(files), SAMPLE - len(some)))}))


def test_corpus_files_are_left_alone_or_their_repairs_parse_and_settle(tmp_path: Path) -> None:
    files = corpus()
    before = {path: path.stat().st_mtime_ns for path in files}
    result = apply(files, unsafe=True, write=False, cache=False)
    assert result.files + len(result.problems) >= len(files)
    assert [note for note in result.notes if "left alone" in note.text] == []
    copies = {tmp_path / str(path).lstrip(os.sep): path for path in files}
    for copy, path in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    written = apply(list(copies), unsafe=True, cache=False)
    for change in written.changes:
        ast.parse(change.after, change.path)
    again = apply(list(copies), unsafe=True, cache=False)
    assert [change.diff for change in again.changes] == []
    assert {path: path.stat().st_mtime_ns for path in files} == before, "the corpus itself was written to"
