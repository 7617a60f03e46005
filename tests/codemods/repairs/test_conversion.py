"""Conversions of a class to a layer beyond the fixtures' options."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery import apply
from ckpt_surgery.codemods.finding import Applicability
from tests.codemods.snippets import CALL, LAYERED, PLAIN
from tests.codemods.tools import texts, tree

FLAG = "    supports_gradient_checkpointing = True\n\n"
GIVEN = "past_key_values=None, encoder_hidden_states=None"


def unflagged(text: str, given: str, call: str) -> str:
    """Return the snippet without its flag, with other parameters and another call of its block."""
    return text.replace(FLAG, "").replace("attention_mask=None, past_key_values=None", given).replace(CALL, call)


@pytest.mark.parametrize(
    ("given", "call", "after"),
    [
        (GIVEN, "layer(hidden_states, past_key_values, encoder_hidden_states)", ""),
        (GIVEN, "layer(hidden_states, past_key_values)", "layer(hidden_states, past_key_values=past_key_values)"),
    ],
    ids=["no safe repair of the call", "a safe repair of the call"],
)
def test_a_block_of_a_model_without_the_flag_waits_for_its_call_as_well(
    tmp_path: Path, given: str, call: str, after: str
) -> None:
    before = unflagged(PLAIN, given, call)
    root = tree(tmp_path, before)
    result = apply([root], include_unsupported=True, jobs=1)
    blocks = [finding for finding in result.findings if finding.code == "CKPT001"]
    assert [block.applicability for block in blocks] == [Applicability.SAFE if after else Applicability.UNSAFE]
    assert ("FooModel passes `past_key_values` to FooLayer" in blocks[0].message) is not bool(after)
    assert list(texts(root).values()) == [unflagged(LAYERED, given, after) if after else before]
