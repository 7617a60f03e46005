"""`# Copied from` comments: they stay while copy and source are equal, and go with a reason if they diverge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codemods.snippets import BAR, INLINE, LAYERED, MODEL, PLAIN
from tests.codemods.tools import FOO, repair, texts, tree

COMMENT = "# Copied from transformers.models.bar.modeling_bar.BarLayer with Bar->Foo\n"


def copied(text: str, comment: str = COMMENT) -> str:
    return text.replace("class FooLayer", comment + "class FooLayer")


def bar(text: str) -> str:
    return text.replace("Foo", "Bar")


def test_a_copy_and_its_source_that_change_alike_keep_the_comment(tmp_path: Path) -> None:
    root = tree(tmp_path, {FOO: copied(PLAIN), BAR: bar(PLAIN)})
    result = repair(root)
    assert texts(root) == {FOO: copied(LAYERED), BAR: bar(LAYERED)}
    assert result.notes == ()


def test_a_comment_goes_from_the_side_that_diverges_with_a_reason(tmp_path: Path) -> None:
    plain_model = bar(PLAIN).replace("    supports_gradient_checkpointing = True\n\n", "")
    root = tree(tmp_path, {FOO: copied(PLAIN), BAR: plain_model})
    result = repair(root)
    assert texts(root) == {FOO: LAYERED, BAR: plain_model}
    (note,) = result.notes
    assert "Copied from transformers.models.bar.modeling_bar.BarLayer" in note.text
    assert str(root / FOO) == note.path
    copy = copied(PLAIN).replace("    supports_gradient_checkpointing = True\n\n", "")
    root = tree(tmp_path / "1", {FOO: copy, BAR: bar(PLAIN)})
    result = repair(root)
    assert texts(root) == {FOO: copy.replace(COMMENT, ""), BAR: bar(LAYERED)}
    assert len(result.notes) == 1


def test_a_comment_that_was_untrue_or_is_untouched_stays(tmp_path: Path) -> None:
    source = bar(PLAIN).replace("return self.self_attn(hidden_states)", "return hidden_states")
    root = tree(
        tmp_path, {FOO: copied(PLAIN), BAR: source.replace("    supports_gradient_checkpointing = True\n\n", "")}
    )
    result = repair(root)
    assert COMMENT in texts(root)[FOO]
    assert result.notes == ()
    root = tree(tmp_path / "1", {FOO: copied(LAYERED), BAR: bar(LAYERED), "models/z/modeling_z.py": INLINE})
    assert repair(root).notes == ()
    assert COMMENT in texts(root)[FOO]


METHOD = "    # Copied from transformers.models.bar.modeling_bar.BarModel.forward with Bar->Foo\n"


@pytest.mark.parametrize("same", [True, False], ids=["alike", "parted"])
def test_a_comment_on_a_forward_follows_the_same_rule(tmp_path: Path, same: bool) -> None:
    head, forward = INLINE.rsplit("    def forward", 1)
    source = bar(INLINE)
    if not same:
        source = source.replace("class BarLayer", "# ckpt: ignore\nclass BarLayer").replace(
            "            if self.gradient", "            # ckpt: ignore\n            if self.gradient"
        )
    root = tree(tmp_path, {FOO: head + METHOD + "    def forward" + forward, BAR: source})
    result = repair(root)
    assert (METHOD in texts(root)[FOO]) is (same or bool(len(result.notes) == 0))
    assert MODEL.split("\n")[0] in texts(root)[FOO]


def test_a_copy_in_all_casings_is_still_compared_with_its_source(tmp_path: Path) -> None:
    comment = COMMENT.replace("Bar->Foo", "Bar->Foo all-casing")
    named = PLAIN.replace("return self.self_attn(hidden_states)", "return self.self_attn(hidden_states)  # FOO of foo")
    assert named != PLAIN
    plain_model = bar(named).replace("    supports_gradient_checkpointing = True\n\n", "")
    source = plain_model.replace("FOO of foo", "BAR of bar")
    root = tree(tmp_path, {FOO: copied(named, comment), BAR: source})
    result = repair(root)
    assert comment not in texts(root)[FOO]  # it was equal before, and is not any more
    assert len(result.notes) == 1
