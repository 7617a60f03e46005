"""The files of a tree joined: names, base chains and what stacks hold, also where code goes in circles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ckpt_surgery.codemods.facts.extract import extract
from ckpt_surgery.codemods.tree.classes import Answer, External, Ref
from ckpt_surgery.codemods.tree.index import TreeIndex

ROOT = Path(__file__).parents[3]
FOO, BAR = "/t/models/foo/modeling_foo.py", "/t/models/bar/modeling_bar.py"


def index(files: Mapping[str, str], beside: Mapping[str, str] | None = None) -> TreeIndex:
    facts = {path: extract(text) for path, text in files.items()}
    others = {path: extract(text) for path, text in (beside or {}).items()}
    return TreeIndex(facts, others.get, {**files, **(beside or {})}.__getitem__)


def ref(tree: TreeIndex, name: str, path: str = FOO) -> Ref:
    return next(one for one in tree.refs(path) if one.name == name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class A(GradientCheckpointingLayer): ...", Answer.YES),
        ("class A(B): ...\nclass B(GradientCheckpointingLayer): ...", Answer.YES),
        ("class A(Mixin, modeling_layers.GradientCheckpointingLayer): ...", Answer.YES),
        ("from torch import nn\nclass A(nn.Module): ...", Answer.NO),
        ("class A: ...", Answer.NO),
        ("from elsewhere import B\nclass A(B): ...", Answer.UNKNOWN),
        ("class A(make_base()): ...", Answer.UNKNOWN),
        ("from ..bar.modeling_bar import B\nclass A(B): ...", Answer.UNKNOWN),
    ],
)
def test_whether_a_class_is_a_layer_has_three_answers(text: str, expected: Answer) -> None:
    tree = index({FOO: text})
    assert tree.is_layer(ref(tree, "A")) is expected


@pytest.mark.parametrize(
    "line",
    [
        "from ..bar.modeling_bar import BarLayer as Base",
        "from ..bar import modeling_bar\nBase = modeling_bar.BarLayer",
        "from transformers.models.bar.modeling_bar import BarLayer as Base",
    ],
    ids=["relative", "module", "absolute"],
)
def test_a_base_class_is_followed_into_another_file(line: str) -> None:
    bar = "class BarLayer(GradientCheckpointingLayer): ..."
    text = f"{line}\nclass A({'modeling_bar.BarLayer' if 'Base =' in line else 'Base'}): ..."
    for tree in (index({FOO: text, BAR: bar}), index({FOO: text}, {BAR: bar})):
        assert tree.is_layer(ref(tree, "A")) is Answer.YES


INIT = "    def __init__(self):\n        "
CIRCLES: dict[str, dict[str, str]] = {
    "a class of itself": {FOO: "class A(A): ..."},
    "each of the other": {FOO: "class A(B): ...\nclass B(A): ..."},
    "two files": {
        FOO: "from ..bar.modeling_bar import A as B\nclass A(B): ...",
        BAR: "from ..foo.modeling_foo import A as B\nclass A(B): ...",
    },
    "imports alone": {FOO: "from ..bar.modeling_bar import A", BAR: "from ..foo.modeling_foo import A"},
    "a file of itself": {FOO: "from .modeling_foo import A\nclass C(A): ..."},
    "attributes": {FOO: f"class A:\n{INIT}self.a = self.a\n        self.b = self.c\n        self.c = self.b"},
    "an element of itself": {FOO: f"class A:\n{INIT}self.a = A()\n        self.b = [A(), [A()]]"},
    "a method": {FOO: f"class A:\n    def make(self):\n        return self.make()\n{INIT}self.a = self.make()"},
    "a function": {FOO: f"def make(x):\n    return make(x)\nclass A:\n{INIT}self.a = make(self)"},
    "values": {FOO: f"A = B\nB = A\nclass C(A):\n{INIT}self.a = A()"},
    "a dict of itself": {FOO: f"X = {{'a': X}}\nclass C:\n{INIT}self.a = X['a']()"},
}


@pytest.mark.parametrize("files", CIRCLES.values(), ids=CIRCLES)
def test_circles_end(files: Mapping[str, str]) -> None:
    tree = index(files)
    for one in list(tree.checked_refs()):
        tree.is_layer(one)
        tree.mro(one)
        tree.parts(one)
        tree.forward(one)
        tree.heirs(one)
        for name in ("a", "b", "c"):
            tree.reached(one, (name, "*", "*"))
        tree.named(FOO, "A")
    assert tree.supported == frozenset()


def test_the_nearest_forward_runs() -> None:
    text = "class A:\n    def forward(self, a): ...\nclass B(A): ...\nclass C(B):\n    def forward(self, c): ...\n"
    tree = index({FOO: text})
    found = {name: tree.forward(ref(tree, name)) for name in "ABC"}
    assert {name: one[0].name for name, one in found.items() if one} == {"A": "A", "B": "A", "C": "C"}


def test_both_definitions_under_a_guard_are_meant() -> None:
    text = "if fast:\n    class A: ...\nelse:\n    class A(GradientCheckpointingLayer): ...\n"
    tree = index({FOO: text})
    assert [tree.is_layer(one) for one in tree.named(FOO, "A") if isinstance(one, Ref)] == [Answer.NO, Answer.YES]


def test_what_is_not_at_hand_is_external() -> None:
    tree = index({FOO: "from elsewhere.part import Thing"})
    assert tree.named(FOO, "Thing") == (External("Thing", "elsewhere.part"),)
    assert tree.named(FOO, "Nothing") == ()


def test_files_loaded_to_understand_others_are_not_checked() -> None:
    tree = index({FOO: "from ..bar.modeling_bar import B\nclass A(B): ..."}, {BAR: "class B: ..."})
    assert tree.is_layer(ref(tree, "A")) is Answer.NO
    assert [one.name for one in tree.checked_refs()] == ["A"]


def test_a_model_is_made_of_what_it_holds_at_any_depth() -> None:
    text = (
        "class M(PreTrainedModel):\n    supports_gradient_checkpointing = True\n"
        "    def __init__(self):\n        self.e = E()\n"
        "class E:\n    def __init__(self):\n        self.layers = ModuleList([[L() for _ in x] for _ in y])\n"
        "class L: ...\nclass Other: ...\n"
    )
    assert {one.name for one in index({FOO: text}).supported} == {"M", "E", "L"}


@pytest.mark.parametrize("count", [1, 2, 6])
def test_builds_that_speak_of_each_other_are_read_quickly(tmp_path: Path, count: int) -> None:
    lines = [
        line
        for n in range(count)
        for line in (
            f"self.k['{n}'] = self.k['{n}']()",
            f"x = self.k.get('b{n}') or self.k['a{n}']",
            f"self.k['b{n}'] = x",
        )
    ]
    text = "class A:\n    def __init__(self, k):\n        self.k = k\n\n    def run(self):\n        "
    (tmp_path / "m.py").write_text(text + "\n        ".join(lines) + "\n")
    script = f"from ckpt_surgery import check; check([{str(tmp_path)!r}], jobs=1, cache=False)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=10, check=True)
