"""The command `rule`."""

from __future__ import annotations

import pytest

from ckpt_surgery.cli.main import main
from tests.cli.stand_ins import RULES

pytestmark = pytest.mark.usefixtures("place")


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule"]) == 0
    expected = [line for rule in RULES for line in (f"{rule.code} {rule.name}", f"    {rule.summary}")]
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("name", ["CKPT003", "ckpt003", "keyword_gradient"])
def test_a_rule_is_explained_by_code_or_name(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["rule", name]) == 0
    assert capsys.readouterr().out == "CKPT003 keyword_gradient\n\nWhat it does\n\nIt finds.\n"
