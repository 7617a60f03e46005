"""The values that `check` and `apply` refuse before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery import apply, check
from ckpt_surgery.codemods import RULES
from ckpt_surgery.errors import OptionError
from tests.codemods.snippets import PLAIN
from tests.codemods.tools import tree


@pytest.mark.parametrize("function", [check, apply])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": 0}, "jobs is 0: give a whole number from 1 up, or None"),
        ({"jobs": -1}, "jobs is -1: give "),
        ({"jobs": "2"}, "jobs is '2': give "),
        ({"jobs": True}, "jobs is True: give "),
        ({"exclude": "legacy"}, "exclude is 'legacy': give a list of strings"),
        ({"per_file_ignores": ["a.py"]}, "per_file_ignores is ['a.py']: give a dictionary"),
        ({"per_file_ignores": {"a.py": "CKPT001"}}, "per_file_ignores has 'a.py': 'CKPT001': give "),
        ({"per_file_ignores": {"a.py": [1]}}, "per_file_ignores has 'a.py': [1]: give "),
        ({"per_file_ignores": {"a.py": ["CKPT9"]}}, "per_file_ignores['a.py']: no rule has the code 'CKPT9': "),
        ({"select": "CKPT003", "ignore": ["CKPT003"]}, "ignore leaves no rule to check: ignore fewer"),
        ({"ignore": [rule.code for rule in RULES]}, "ignore leaves no rule to check: ignore fewer"),
        ({"select": ["CKPT9"]}, "no rule has the code 'CKPT9': the codes are CKPT001, "),
    ],
)
def test_a_wrong_value_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, options: dict[str, Any], said: str
) -> None:
    root = tree(tmp_path, PLAIN)
    monkeypatch.setattr(f"{function.__module__}.discover", lambda *_, **__: pytest.fail("the work has begun"))
    with pytest.raises(OptionError) as error:
        function([root], **options)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)
