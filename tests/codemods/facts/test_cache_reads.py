"""Reads of past state that may be None, or that another block wrote."""

from __future__ import annotations

import ast

import pytest

from ckpt_surgery.codemods.facts.cache_reads import cache_reads


def reads(body: str) -> list[str]:
    text = "def forward(self, x, past=None, use_cache=None):\n    " + body.replace("\n", "\n    ")
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    return ["shared" if read.shared else "needed" for read in cache_reads({"forward": function}, {"past"})]


@pytest.mark.parametrize(
    "body",
    [
        "return past.update(x)",
        "return past[0] + x",
        "key, value = past",
        "return [f(past.key) for _ in x]",
        "return f(key=past.key)",
        "if x is None:\n    return past.key",
        "return x if x.any() else past.key",
        "with f():\n    past.update(x)",
    ],
)
def test_a_read_that_fails(body: str) -> None:
    assert reads(body) == ["needed"]


@pytest.mark.parametrize(
    "body",
    [
        "if past is not None:\n    x = past.update(x)",
        "if use_cache:\n    x = past.update(x)",
        "x = past[0] if past is not None else x",
        "x = past is not None and past.key",
        "if past is None:\n    past = Cache()\npast.update(x)",
        "if past is None:\n    return x\nreturn past.key",
        "past = past or Cache()\npast.update(x)",
        "has = past is not None and x\nif has:\n    past.update(x)",
        "try:\n    past.update(x)\nexcept AttributeError:\n    pass",
        "return self.attention(x, past=past)",
        "if past is not None:\n    return past[self.layer_idx]",
        "if past is not None:\n    return past.layers[self.layer_idx].keys",
        "f = lambda: past.key",
        "if past is not None:\n    x = past[0]",
        "if past is not None:\n    past.append(x)",
        "if past is not None:\n    past[self.layer_idx] = x",
    ],
)
def test_a_read_that_asks(body: str) -> None:
    assert reads(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "if past is not None:\n    x = past[self.source]",
        "if past is not None:\n    x = past.layers[self.source_idx].keys",
        "if past is not None:\n    x = past[self.layer_idx - 1]",
    ],
)
def test_a_read_of_what_another_block_wrote(body: str) -> None:
    assert reads(body) == ["shared"]
