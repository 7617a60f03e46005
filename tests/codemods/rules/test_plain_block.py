"""Plain blocks without a visible call, and lists that grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.static.check import check
from tests.codemods.snippets import CALL, PLAIN
from tests.codemods.tools import repair, texts, tree

FILE = "models/foo/modeling_foo.py"
STACK = "self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])"
GROWN = """\
blocks = []
        for _ in range(config.num_hidden_layers):
            {}
        self.layers = nn.ModuleList(blocks)"""
MAKER = """\
    def made(self, config):
        return [FooLayer(config)]

"""


@pytest.mark.parametrize(
    "line", ["blocks += [FooLayer(config)]", "blocks.extend([FooLayer(config)])", "blocks += self.made(config)"]
)
def test_the_calls_of_a_list_that_grows_are_seen(tmp_path: Path, line: str) -> None:
    start = PLAIN.index("class FooModel")
    model = PLAIN[start:].replace(STACK, GROWN.format(line)).replace(CALL, f"layer(hidden_states={CALL[6:]}")
    model = model.replace("    def forward(", MAKER + "    def forward(")
    model = model.replace("hidden_states=hidden_states, attention_mask)", "hidden_states=hidden_states)")
    tree(tmp_path, {FILE: PLAIN[:start] + model})
    found = check([tmp_path], jobs=1).findings
    assert [(finding.code, finding.applicability) for finding in found] == [
        ("CKPT001", Applicability.SAFE),
        ("CKPT003", Applicability.SAFE),
    ]


@pytest.mark.parametrize(
    ("call", "applicability"),
    [("layer(hidden_states)", Applicability.SAFE), ("self.run(layer, hidden_states)", Applicability.UNSAFE)],
)
def test_a_block_of_which_no_call_is_seen_is_not_made_a_layer(
    tmp_path: Path, call: str, applicability: Applicability
) -> None:
    tree(tmp_path, {FILE: PLAIN.replace(CALL, call)})
    (finding,) = check([tmp_path], jobs=1).findings
    assert finding.applicability is applicability
    assert ("no call of FooLayer was found" in finding.message) is (applicability is Applicability.UNSAFE)


def test_a_stack_that_calls_its_blocks_needs_no_call_of_them(tmp_path: Path) -> None:
    stack = PLAIN.replace("nn.ModuleList(", "nn.Sequential(*").replace("for layer in self.layers:", "if True:")
    tree(tmp_path, {FILE: stack.replace(CALL, "self.layers(hidden_states)")})
    (finding,) = check([tmp_path], jobs=1).findings
    assert finding.applicability is Applicability.SAFE


@pytest.mark.parametrize(("guard", "repaired"), [(False, True), (True, False)])
def test_a_file_of_torch_alone_imports_transformers_only_if_its_model_does(
    tmp_path: Path, guard: bool, repaired: bool
) -> None:
    start, end = PLAIN.index("class FooAttention"), PLAIN.index("class FooModel")
    source = "from transformers import PreTrainedModel\n"
    if guard:
        source = f"try:\n    {source}except ImportError:\n    PreTrainedModel = object\n"
    model = f"from torch import nn\n\n{source}from .layers import FooLayer\n\n\n{PLAIN[end:]}"
    tree(tmp_path, {"foo/layers.py": f"from torch import nn\n\n\n{PLAIN[start:end]}", "foo/model.py": model})
    repair(tmp_path, unsafe=True)
    assert ("GradientCheckpointingLayer" in texts(tmp_path)["foo/layers.py"]) is repaired
