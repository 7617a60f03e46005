"""Imports that a repair leaves unused go; every other one stays as it is."""

from __future__ import annotations

import ast

import pytest

from ckpt_surgery.codemods.edits.imports import by_type, unused_imports
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.source_text import SourceText


def tidied(before: str, after: str) -> str:
    """`after` without the imports that only `before` used."""
    text = after
    edits = unused_imports("models/foo/modeling_foo.py", extract(after), before, SourceText(after), 119)
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    ast.parse(text)
    return text


USE = "print(partial)\n"


@pytest.mark.parametrize(
    ("head", "left"),
    [
        ("from functools import partial\nimport os\n", "import os\n"),
        ("from functools import lru_cache, partial\n", "from functools import lru_cache\n"),
        ("from functools import (\n    lru_cache,\n    partial,\n)\n", "from functools import lru_cache\n"),
        ("from functools import (\n    partial,\n)\n", ""),
    ],
    ids=["alone", "among others", "on a line of its own", "alone in parentheses"],
)
def test_a_name_that_only_the_removed_text_used_goes(head: str, left: str) -> None:
    rest = "print(lru_cache, os)\n"
    assert tidied(head + rest + USE, head + rest) == left + rest


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        ("from functools import partial\n", "print(partial)\n"),
        ("from functools import partial\n", "__all__ = ['partial']\n"),
        ("from functools import partial\n", "# partial is used by others\n"),
        ("from functools import partial as part\n", ""),
        ("if True:\n    from functools import partial\n", ""),
        ("def f():\n    from functools import partial\n", ""),
        ("from functools import *\n", ""),
    ],
    ids=["used", "exported", "spoken of", "an alias", "guarded", "local", "all of them"],
)
def test_a_name_that_may_be_needed_stays(head: str, rest: str) -> None:
    assert tidied(head + rest + USE, head + rest) == head + rest


def test_a_name_that_nothing_used_before_stays() -> None:
    text = "from functools import partial\nx = 1\n"
    assert tidied(text, text) == text


def test_an_import_from_the_future_stays() -> None:
    head = "from __future__ import annotations\n"
    assert tidied(head + "# with annotations\n", head) == head


def test_a_submodule_whose_import_also_binds_the_package_stays() -> None:
    head = "import torch.utils.checkpoint\n\nprint(torch)\n"
    assert tidied(head + "torch.utils.checkpoint.checkpoint(print)\n", head) == head


def test_a_statement_on_the_same_line_stays() -> None:
    head = "from functools import partial; LIMIT = 1\n"
    assert "LIMIT = 1" in tidied(head + USE, head)


def test_a_module_that_only_the_removed_text_used_goes() -> None:
    head = "import torch\nfrom torch import nn\n\nprint(nn)\n"
    assert tidied(head + "class A(torch.nn.Module): ...\n", head) == "from torch import nn\n\nprint(nn)\n"


def test_names_are_sorted_as_isort_does() -> None:
    assert sorted(["zeta", "Beta", "ALPHA", "Alpha", "beta"], key=by_type) == [
        "ALPHA",
        "Alpha",
        "Beta",
        "beta",
        "zeta",
    ]
