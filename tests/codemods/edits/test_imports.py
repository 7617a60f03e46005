"""Imports: added where isort puts them, and removed only if a repair left them unused."""

from __future__ import annotations

import ast

import libcst as cst
import pytest

from ckpt_surgery.codemods.edits.imports import AddImport
from ckpt_surgery.codemods.edits.paths import PlaceError
from ckpt_surgery.codemods.edits.rewrite import transformed
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.repairs.unused_imports import unused_imports


def tidied(before: str, after: str) -> str:
    """Remove from `after` the imports that only `before` used."""
    unused = unused_imports("models/foo/modeling_foo.py", extract(after), before, after, 119)
    text = transformed(cst.parse_module(after), [unused]).code if unused else after
    ast.parse(text)
    return text


def imported(text: str, module: str = "...layers", name: str = "Layer", guard: str = "") -> str:
    after = AddImport(module, name, width=60, guard=guard).transform_module(cst.parse_module(text)).code
    ast.parse(after)
    assert AddImport(module, name, width=60, guard=guard).transform_module(cst.parse_module(after)).code == after
    return after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from ...layers import (\n    Act,  # why\n    Zoo,\n)\n",
            "from ...layers import (\n    Act,  # why\n    Zoo,\n)\nfrom ...layers import Layer\n",
        ),
        (
            "from __future__ import annotations\n\nimport os\n\nx = 1\n",
            "from __future__ import annotations\n\nimport os\n\nfrom ...layers import Layer\n\nx = 1\n",
        ),
        ('"""Says."""\n\nclass A: ...\n', '"""Says."""\n\nfrom ...layers import Layer\n\nclass A: ...\n'),
        (
            "from ...aaa import b\nclass A: ...\nfrom ...layers import C\n",
            "from ...aaa import b\nfrom ...layers import Layer\nclass A: ...\nfrom ...layers import C\n",
        ),
    ],
    ids=["comments stay as they are", "nothing of the kind", "no import at all", "below the first class is too late"],
)
def test_a_name_is_imported_where_isort_puts_it(before: str, after: str) -> None:
    assert imported(before) == after


def test_a_name_is_imported_under_a_guard() -> None:
    text = "import os\n\nif is_torch_available():\n    import torch\n\n    from transformers.b import B\n"
    after = text + "    from transformers.layers import Layer\n"
    assert imported(text, "transformers.layers", guard="is_torch_available()") == after
    with pytest.raises(PlaceError, match="is_tf_available"):
        imported(text, guard="is_tf_available()")


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


def test_a_submodule_whose_import_also_binds_the_package_stays() -> None:
    head = "import torch.utils.checkpoint\n\nprint(torch)\n"
    assert tidied(head + "torch.utils.checkpoint.checkpoint(print)\n", head) == head


def test_a_statement_on_the_same_line_stays() -> None:
    head = "from functools import partial; LIMIT = 1\n"
    assert "LIMIT = 1" in tidied(head + USE, head)


def test_a_module_that_only_the_removed_text_used_goes() -> None:
    head = "import torch\nfrom torch import nn\n\nprint(nn)\n"
    assert tidied(head + "class A(torch.nn.Module): ...\n", head) == "from torch import nn\n\nprint(nn)\n"
