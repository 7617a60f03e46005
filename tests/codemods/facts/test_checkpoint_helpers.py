"""The functions, methods and attributes of a file that checkpoint their arguments."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.providers.helpers import FUNCTIONS, METHODS

IMPORT = "from functools import partial\nfrom torch.utils.checkpoint import checkpoint\n"


@pytest.mark.parametrize(
    "body",
    [
        "return checkpoint(block, x)",
        "return checkpoint(block.__call__, x)",
        "return torch.utils.checkpoint.checkpoint(block, x)",
        "return checkpoint(partial(block, mask=None), x)",
        "return checkpoint(lambda y: block(y), x)",
        "return checkpoint(create_custom_forward(block), x)",
        "def given(y):\n        return block(y)\n    return checkpoint(given, x)",
        "return checkpoint(block, x) if x.requires_grad else block(x)",
    ],
)
def test_a_function_checkpoints_its_parameter(body: str) -> None:
    places = frozenset({0, "block"})
    assert extract(f"{IMPORT}def run(block, x):\n    {body}\n")[FUNCTIONS] == {"run": places}
    method = f"{IMPORT}class Foo:\n  def run(self, block, x):\n    {body}\n"
    assert extract(method).classes[0][METHODS] == {"run": places}


@pytest.mark.parametrize(
    "body",
    [
        "return block(x)",
        "return load_checkpoint(block, x)",
        "return checkpoint(self.layer, block)",
        "def given(y):\n        return self.layer(block, y)\n    return checkpoint(given, x)",
    ],
)
def test_a_function_checkpoints_something_else_or_nothing(body: str) -> None:
    assert extract(f"{IMPORT}def run(block, x):\n    {body}\n")[FUNCTIONS] == {}


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("checkpoint", True),
        ("partial(checkpoint, use_reentrant=False)", True),
        ("given or checkpoint", True),
        ("checkpoint if config.recompute else None", True),
        ("made(config)", True),
        ("other(config)", False),
        ("config.checkpoint", False),
    ],
)
def test_an_attribute_is_a_checkpoint_function(value: str, is_one: bool) -> None:
    text = (
        f"{IMPORT}def made(config):\n  return partial(checkpoint, use_reentrant=False)\n"
        "def other(config):\n  return config\n"
        f"class Foo:\n  def __init__(self, config, given=None):\n    self.run = {value}\n"
    )
    assert tuple(extract(text).classes[0][METHODS]) == (("run",) if is_one else ())
