"""The words of reasons, and that nothing is decided by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery.codemods.finding import Finding, RuleContext
from ckpt_surgery.codemods.wording import Because, WordedReason
from ckpt_surgery.static.check import check
from tests.codemods.snippets import BY_KEYWORD, BY_POSITION, CHILD, INLINE, PLAIN
from tests.codemods.tools import tree

PARAMETERS = "attention_mask=None, past_key_values=None"
BLOCKED = BY_POSITION.replace(PARAMETERS, "past_key_values=None, encoder_hidden_states=None").replace(
    "layer(hidden_states, attention_mask, past_key_values)", "layer(hidden_states, past_key_values, memory)"
)
OTHER_SWITCH = INLINE.replace("self.gradient_checkpointing and", "self.checkpoint and use_cache and")
UNPACKED = BY_POSITION.replace("attention_mask, past_key_values)", "*rest)")
TREE = {
    f"models/{name}/modeling_{name}.py": text
    for name, text in {
        "plain": PLAIN,
        "inline": INLINE,
        "keyword": BY_KEYWORD,
        "position": BY_POSITION,
        "child": CHILD,
        "blocked": BLOCKED,
        "switch": OTHER_SWITCH,
        "unpacked": UNPACKED,
    }.items()
}


@pytest.mark.parametrize("reasons", WordedReason.__subclasses__(), ids=lambda reasons: reasons.__name__)
def test_each_reason_has_its_own_words(reasons: type[WordedReason]) -> None:
    assert len(list(reasons)) == len(reasons.__members__), "an enum takes two members of one value for the same"


def test_findings_and_edits_are_the_same_in_other_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, TREE)
    before = list(_shapes(root))
    assert {"CKPT001", "CKPT002", "CKPT003", "CKPT004", "CKPT005"} <= {finding.code for finding in before}

    monkeypatch.setattr(Because, "text", "LOUD")
    said = RuleContext.finding

    def in_capitals(self: RuleContext, *arguments: Any, **options: Any) -> Finding:
        finding = said(self, *arguments, **options)
        return dataclasses.replace(finding, message=finding.message.upper())

    monkeypatch.setattr(RuleContext, "finding", in_capitals)
    assert list(_shapes(root)) == before


def _shapes(root: Path) -> Iterator[Finding]:
    """Return the findings of a tree without their messages."""
    for finding in check([root], jobs=1, cache=False).findings:
        yield dataclasses.replace(finding, message="")
