"""Changes that can be taken back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ckpt_surgery.undo import Undoable, UndoableHooks

pytestmark = pytest.mark.both


class _Change(Undoable):
    def __init__(self) -> None:
        self.times = 0

    def undo(self) -> None:
        self.times += 1
        self._undone = True


def _hooked() -> tuple[nn.Linear, list[int], UndoableHooks]:
    layer, calls = nn.Linear(2, 2), list[int]()
    handles = [layer.register_forward_pre_hook(lambda *_: calls.append(0)) for _ in range(2)]
    return layer, calls, UndoableHooks(handles)


def test_a_change_is_undone_at_the_end_of_a_with() -> None:
    with _Change() as change:
        assert change.times == 0
    assert change.times == 1


def test_a_change_is_undone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), _Change() as change:
        raise ZeroDivisionError
    assert change.times == 1


def test_a_change_that_was_undone_inside_a_with_is_left_alone() -> None:
    with _Change() as change:
        change.undo()
    assert change.times == 1


def test_hooks_run_until_undone_and_a_second_undo_does_nothing() -> None:
    layer, calls, hooks = _hooked()
    layer(torch.ones(1, 2))
    hooks.undo()
    hooks.undo()
    layer(torch.ones(1, 2))
    assert calls == [0, 0]
