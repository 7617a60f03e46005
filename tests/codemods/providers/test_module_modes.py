"""Modules that a class takes out of training mode, and lists of unregistered modules."""

from __future__ import annotations

import ast

import pytest

from ckpt_surgery.codemods.providers.module_modes import held_in_eval, plain_lists


def method(body: str) -> ast.ClassDef:
    cls = ast.parse("class Foo:\n    def __init__(self, n):\n        " + body.replace("\n", "\n        ")).body[0]
    assert isinstance(cls, ast.ClassDef)
    return cls


FUNCTIONS = {
    node.name: node
    for node in ast.parse(
        "def freeze(module):\n    module.eval()\n\ndef fix(module):\n    module.requires_grad_(False)\n"
    ).body
    if isinstance(node, ast.FunctionDef)
}


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ("self.blocks.eval()", {("blocks",)}),
        ("self.blocks[0].eval()", {("blocks", "*")}),
        ("for block in self.blocks:\n    block.train(False)", {("blocks", "*")}),
        ("for at, block in enumerate(self.blocks[:n]):\n    block.train(mode=False)", {("blocks", "*")}),
        ("blocks = self.encoder.blocks\nblocks.eval()", {("encoder", "blocks")}),
        ("for block in self.blocks:\n    block.train = disabled", {("blocks", "*")}),
        ("self.blocks.training = False", {("blocks",)}),
        ("self.blocks.apply(lambda module: module.eval())", {("blocks",)}),
        ("self.blocks.apply(self._init)", set()),
        ("freeze(self.blocks)", {("blocks",)}),
        ("fix(self.blocks)", set()),
        ("set_eval(self.blocks)", {("blocks",)}),
        ("medieval(self.blocks)", set()),
        ("self.eval()", set()),
        ("self.blocks.train(n)", set()),
        ("self.blocks.train(True)", set()),
        ("model.eval()", set()),
    ],
)
def test_what_is_held_in_eval(body: str, paths: set[tuple[str, ...]]) -> None:
    assert held_in_eval(method(body), FUNCTIONS.get) == paths


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("self.blocks = [Block() for _ in n]", {"blocks"}),
        ("self.blocks = []\nself.blocks.append(Block())", {"blocks"}),
        ("blocks = []\nblocks.append(Block())\nself.blocks = blocks", {"blocks"}),
        ("self.blocks: list[Block] = list(f())", {"blocks"}),
        ("self.blocks = [Block()] * n", {"blocks"}),
        ("self.blocks = nn.ModuleList([Block() for _ in n])", set()),
        ("self.blocks = [Block()]\nself.blocks = nn.ModuleList(self.blocks)", set()),
        ("self.blocks = [Block()]\nself.add_module('0', self.blocks[0])", set()),
        ("self.blocks = make(n)", set()),
    ],
)
def test_lists_that_nothing_registers(body: str, names: set[str]) -> None:
    assert plain_lists(method(body)) == names
