"""What all benchmarks share: packages that are not installed are named."""

from __future__ import annotations

import pytest

from benchmarks.figures import lacking


def test_the_first_package_that_is_not_installed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert not lacking("speed", "rich", "json")
    assert capsys.readouterr().err == ""
    assert lacking("speed", "rich", "no_such_package", "nor_this_one")
    assert capsys.readouterr().err == "speed: No module named 'no_such_package'.\n"
