"""The parts of models, even in circular code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.codemods.tree.trees import BAR, FOO, class_named, source_tree

ROOT = Path(__file__).parents[3]


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
    "an element of what an element of itself has": {
        FOO: f"class A:\n{INIT}x = [A()][0]\n        y = x.b[0]\n        self.b = y.b[0]"
    },
    "a method": {FOO: f"class A:\n    def make(self):\n        return self.make()\n{INIT}self.a = self.make()"},
    "a function": {FOO: f"def make(x):\n    return make(x)\nclass A:\n{INIT}self.a = make(self)"},
    "values": {FOO: f"A = B\nB = A\nclass C(A):\n{INIT}self.a = A()"},
    "a dict of itself": {FOO: f"X = {{'a': X}}\nclass C:\n{INIT}self.a = X['a']()"},
}


@pytest.mark.parametrize("files", CIRCLES.values(), ids=CIRCLES)
def test_circular_code_is_read_to_an_end(files: Mapping[str, str]) -> None:
    tree = source_tree(files)
    for ref in list(tree.names.checked_classes()):
        tree.bases.is_layer(ref)
        tree.bases.chain(ref)
        tree.containers.parts(ref)
        tree.bases.forward(ref)
        tree.bases.heirs(ref)
        for name in ("a", "b", "c"):
            tree.containers.reached(ref, (name, "*", "*"))
        tree.names.named(FOO, "A")
    assert tree.containers.supported == frozenset()


def test_a_model_is_made_of_what_it_holds_at_any_depth() -> None:
    text = (
        "class M(PreTrainedModel):\n    supports_gradient_checkpointing = True\n"
        "    def __init__(self):\n        self.e = E()\n"
        "class E:\n    def __init__(self):\n        self.layers = ModuleList([[L() for _ in x] for _ in y])\n"
        "class L: ...\nclass Other: ...\n"
    )
    assert {ref.name for ref in source_tree({FOO: text}).containers.supported} == {"M", "E", "L"}


def test_builds_that_refer_to_each_other_are_read_quickly(tmp_path: Path) -> None:
    lines = [
        line
        for n in range(6)
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


@pytest.mark.parametrize("returned", ["FooTower(config)", "registry[config.name](config)"], ids=["a class", "unknown"])
def test_what_a_function_of_another_file_makes_is_not_from_another_package(returned: str) -> None:
    model = "class FooModel(PreTrainedModel):\n    def __init__(self, config):\n        self.tower = build(config)\n"
    builder = f"class FooTower(nn.Module): ...\ndef build(config):\n    return {returned}\n"
    head = "from torch import nn\n"
    tree = source_tree({FOO: f"{head}from .builder import build\n{model}", "/t/models/foo/builder.py": head + builder})
    assert list(tree.blocks.foreign(class_named(tree, "FooModel"))) == []
    parts = {part.name for part in tree.containers.parts(class_named(tree, "FooModel"))}
    assert parts == ({"FooTower"} if "Tower" in returned else set())
