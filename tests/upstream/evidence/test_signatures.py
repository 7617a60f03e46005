"""Changed forwards are reported with their callers, unless the change breaks none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.upstream.evidence.results import SignatureChange
from ckpt_surgery.upstream.evidence.signatures import changed_signatures

TOY = "src/transformers/models/toy/modeling_toy.py"

BLOCK = """
from torch import nn
from ...modeling_layers import GradientCheckpointingLayer


class ToyBlock(GradientCheckpointingLayer):
    def forward(PARAMETERS):
        return hidden_states
"""
BEFORE = "self, hidden_states: Tensor, layer_past: Cache = None, mask: Tensor = None, flag: bool = False"
AFTER = "self, hidden_states: Tensor, mask: Tensor = None, layer_past: Cache = None, flag: bool = False"


def tree(top: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def changed(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> tuple[SignatureChange, ...]:
    """Find the signatures that differ between two sets of files."""
    both = tree(tmp_path / "before", before), tree(tmp_path / "after", after)
    return tuple(change for file in sorted({*before, *after}) for change in changed_signatures(*both, file))


def between(tmp_path: Path, before: str, after: str) -> tuple[SignatureChange, ...]:
    """Change the toy block's parameters; return the reported changes."""
    return changed(tmp_path, *({TOY: BLOCK.replace("PARAMETERS", signature)} for signature in (before, after)))


def test_a_new_order_is_reported_without_self_and_annotations(tmp_path: Path) -> None:
    (change,) = between(tmp_path, BEFORE, AFTER)
    assert (change.path, change.class_name, change.line) == (TOY, "ToyBlock", 7)
    assert change.before == "hidden_states, layer_past=None, mask=None, flag=False"
    assert change.after == "hidden_states, mask=None, layer_past=None, flag=False"


@pytest.mark.parametrize(
    "after",
    [
        "self, hidden_states, layer_past=None, mask=None, flag=False",
        f"{BEFORE}, more=None",
        f"{BEFORE}, *rest, more, **others",
        "self, hidden_states=None, layer_past=None, mask=(), flag=True",
    ],
    ids=[
        "no annotations",
        "an option behind",
        "by keyword only",
        "other defaults",
    ],
)
def test_what_breaks_no_positional_caller_is_not_reported(tmp_path: Path, after: str) -> None:
    assert between(tmp_path, BEFORE, after) == ()


@pytest.mark.parametrize(
    "after",
    [
        "self, hidden_states, past=None, mask=None, flag=False",
        "self, hidden_states, layer_past=None, mask=None",
        "self, hidden_states, layer_past=None, mask=None, *, flag=False",
        "self, hidden_states, layer_past, mask=None, flag=False",
        "self, more, hidden_states, layer_past=None, mask=None, flag=False",
    ],
    ids=["renamed", "lost", "by keyword only", "no default any more", "one in front"],
)
def test_what_breaks_a_positional_caller_is_reported(tmp_path: Path, after: str) -> None:
    assert [change.class_name for change in between(tmp_path, BEFORE, after)] == ["ToyBlock"]


def test_a_lost_rest_and_a_new_required_one_are_reported(tmp_path: Path) -> None:
    assert between(tmp_path / "rest", "self, hidden_states, *rest", "self, hidden_states")
    assert between(tmp_path / "required", "self, hidden_states", "self, hidden_states, mask")
