"""The words for refusals and doubts, and that nothing is decided by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery.codemods import wording
from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.codemods.repairs.conversion import Doubt, DoubtReason, Refusal, RefusalReason
from ckpt_surgery.codemods.rules import inline_checkpoint, signature_order
from ckpt_surgery.codemods.tree.arguments import ArgumentPlan, Unknown, UnknownReason
from ckpt_surgery.codemods.tree.switches import Missing
from ckpt_surgery.static.check import check
from tests.codemods.snippets import BY_KEYWORD, BY_POSITION, CHILD, INLINE, PLAIN
from tests.codemods.tools import tree

TABLES = {
    wording: ("_REFUSALS", "_DOUBTS", "_MISSING", "_UNKNOWN"),
    inline_checkpoint: ("_WORDS",),
    signature_order: ("_WORDS",),
}
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


def test_there_are_words_for_every_reason() -> None:
    assert all(wording.unknown_text(Unknown(reason, ("A", "B"))) for reason in UnknownReason)
    assert all(wording.refusal_text(Refusal(reason, ("A", "a.py"))) for reason in RefusalReason)
    assert wording._DOUBTS.keys() == set(DoubtReason)
    assert wording._MISSING.keys() == set(Missing)
    assert inline_checkpoint._WORDS.keys() == set(inline_checkpoint.Obstacle)
    assert signature_order._WORDS.keys() == set(signature_order.UnfollowedUse)


@pytest.mark.parametrize(
    ("plan", "ending"),
    [
        (ArgumentPlan(positional_past=("state",), blocked=("x",)), "only CKPT005 can change, which is unsafe"),
        (ArgumentPlan(positional_past=("state",), unknown=Unknown(UnknownReason.UNPACKED)), "`*` argument may hold"),
        (ArgumentPlan(positional_past=("state",)), "a parameter in between has no default"),
    ],
    ids=["blocked", "unknown", "no default"],
)
def test_a_doubt_says_who_passes_what_and_why_it_stays(plan: ArgumentPlan, ending: str) -> None:
    text = wording.doubt_text(Doubt(DoubtReason.PAST_STATE, ("FooModel", "FooLayer"), plan))
    assert text.startswith("FooModel passes `state` to FooLayer by position, which ")
    assert ending in text


def test_findings_and_edits_are_the_same_in_other_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, TREE)
    before = list(_shapes(root))
    assert {"CKPT001", "CKPT002", "CKPT003", "CKPT004", "CKPT005"} <= {finding.code for finding in before}

    for module, tables in TABLES.items():
        for table in tables:
            loud = {key: text.upper() for key, text in vars(module)[table].items()}
            monkeypatch.setattr(module, table, loud)
    said = RuleContext.finding

    def in_capitals(self: RuleContext, *arguments: Any, **options: Any) -> Finding:
        finding = said(self, *arguments, **options)
        return dataclasses.replace(finding, message=finding.message.upper())

    monkeypatch.setattr(RuleContext, "finding", in_capitals)
    assert list(_shapes(root)) == before


def _shapes(root: Path) -> Iterator[Finding]:
    """The findings of a tree without their messages."""
    for finding in check([root], jobs=1, cache=False).findings:
        yield dataclasses.replace(finding, message="")
