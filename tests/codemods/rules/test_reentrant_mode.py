"""Faults of `use_reentrant=True` alone, by the releases that a package asks for and by its code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.check import check
from tests.codemods.snippets import BY_KEYWORD, INLINE
from tests.codemods.tools import FOO, tree

REMOTE, LATE = "remote/modeling_foo.py", "transformers>=5.2,<5.24"
KEYWORD = BY_KEYWORD.replace("from ...", "from transformers.")
BEHIND = KEYWORD.replace(
    "attention_mask=None, past_key_values=None", "past_key_values=None, encoder_hidden_states=None", 1
).replace(
    "layer(hidden_states=hidden_states, attention_mask=attention_mask)",
    "layer(hidden_states, past_key_values=past_key_values, encoder_hidden_states=attention_mask)",
)
CONTAINER = KEYWORD.replace("layer(hidden_states=hidden_states,", "layer((hidden_states, hidden_states),")
BRANCH = INLINE.replace("from ...", "from transformers.").replace(
    "layer.__call__, hidden_states, attention_mask)", "layer.__call__, hidden_states, attention_mask=attention_mask)"
)


def findings(root: Path, text: str, requirement: str, script: str = "", path: str = REMOTE) -> list[Finding]:
    """Check a file beside a script, in a package that requires some releases."""
    tree(root, {path: text, "train.py": script, "requirements.txt": f"{requirement}\n"})
    return list(check([root], jobs=1).findings)


@pytest.mark.parametrize(
    ("text", "codes"),
    [(KEYWORD, {"CKPT003"}), (BEHIND, {"CKPT003", "CKPT005"}), (CONTAINER, {"CKPT007"})],
    ids=["by keyword", "behind past state", "in a container"],
)
def test_a_mode_that_nobody_uses_is_information(tmp_path: Path, text: str, codes: set[str]) -> None:
    late = findings(tmp_path / "late", text, LATE)
    assert {(found.code, found.applicability) for found in late} == {(code, Applicability.INFO) for code in codes}
    assert all("with use_reentrant=True" in found.message for found in late)
    assert apply([tmp_path / "late"], unsafe=True, write=False, jobs=1).changes == ()
    for name, requirement, script, path in [
        ("early", "transformers>=4.57,<5.24", "", REMOTE),
        ("unknown", "transformers<5.24", "", REMOTE),
        ("said", LATE, 'model.gradient_checkpointing_enable({"use_reentrant": True})\n', REMOTE),
        ("own", LATE, "", FOO),
    ]:
        own = text.replace("from transformers.", "from ...") if path == FOO else text
        faults = [
            found.code
            for found in findings(tmp_path / name, own, requirement, script, path)
            if found.applicability != "info"
        ]
        assert set(faults) == codes, name


def test_its_repair_is_made_where_it_is_selected(tmp_path: Path) -> None:
    (only,) = findings(tmp_path, KEYWORD, LATE)
    assert only.repairs
    result = apply([tmp_path], select="CKPT003", write=False, jobs=1)
    assert [found.applicability for found in result.findings] == [Applicability.SAFE]
    assert "layer(hidden_states, attention_mask=attention_mask)" in result.changes[0].after


@pytest.mark.parametrize(
    ("requirement", "is_fault"), [("transformers==4.51.3", True), ("transformers", False), (LATE, False)]
)
def test_keywords_stop_a_branch_in_the_default_mode_of_its_releases(
    tmp_path: Path, requirement: str, is_fault: bool
) -> None:
    (only,) = findings(tmp_path, BRANCH, requirement)
    assert only.applicability is (Applicability.UNSAFE if is_fault else Applicability.INFO)
    assert "with use_reentrant=True it refuses `attention_mask` by keyword" in only.message
    assert ("that is the default up to transformers 4.57: pass it by position" in only.message) is is_fault
