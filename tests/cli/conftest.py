"""Fakes of the library, which show what the command line asks of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery import codemods
from tests.cli.stand_ins import RULES, StandIn, applied, checked


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an empty working folder, stand-ins for the rules, and no debugging."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(codemods, "RULES", RULES, raising=False)
    monkeypatch.delenv("CKPT_SURGERY_DEBUG", raising=False)


@pytest.fixture
def check(place: None, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(checked())
    monkeypatch.setattr("ckpt_surgery.static.check.check", stand_in)
    return stand_in


@pytest.fixture
def apply(place: None, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(applied())
    monkeypatch.setattr("ckpt_surgery.static.apply.apply", stand_in)
    return stand_in
