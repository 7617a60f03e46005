"""How a case's own parts are joined to a prelude."""

from __future__ import annotations

import pytest

from tests.codemods.preludes import joined
from tests.codemods.tools import FOO, files_of, sides

BASE = """\
import a

import b


class Block(Module):
    def forward(self, x):
        return x


class Model(Base):
    flag = True

    def forward(self, x):
        return x
"""
BLOCK = "    def forward(self, x):\n        return x\n"


def changed(*changes: tuple[str, str]) -> str:
    text = BASE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param("", BASE, id="nothing of its own"),
        pytest.param("import c\n", changed(("import a\n\nimport b", "import c")), id="imports replace all imports"),
        pytest.param(
            "class Block:\n    def forward(self, y): ...\n",
            changed((BLOCK, "    def forward(self, y): ...\n")),
            id="a method replaces the method",
        ),
        pytest.param("class Block(Other): ...\n", changed(("Block(Module)", "Block(Other)")), id="bases alone"),
        pytest.param("class Block: ...\n", BASE, id="neither bases nor members"),
        pytest.param(
            "# why\n@wraps\nclass Block(  # inner\n    Other,  # note:\n):\n    pass\n",
            changed(("class Block(Module):", "# why\n@wraps\nclass Block(  # inner\n    Other,  # note:\n):")),
            id="a head of several lines",
        ),
        pytest.param(
            "class Block:\n    slots = 1\n",
            changed(("Module):\n", "Module):\n    slots = 1\n\n")),
            id="a new attribute",
        ),
        pytest.param(
            "class Model:\n    flag = False\n    size = 1\n",
            changed(("flag = True\n", "flag = False\n    size = 1\n")),
            id="attributes replace all attributes",
        ),
        pytest.param(
            "class Model:\n    # a new one\n    def make(self): ...\n\n    def forward(self, y): ...\n",
            BASE.removesuffix(BLOCK) + "    # a new one\n    def make(self): ...\n\n    def forward(self, y): ...\n",
            id="a new method goes before the next that the class has",
        ),
        pytest.param("def last(): ...\n", BASE + "\n\ndef last(): ...\n", id="a new function goes to the end"),
        pytest.param(
            "SIZE = 1\n\nclass Model: ...\n",
            changed(("class Model", "SIZE = 1\n\n\nclass Model")),
            id="a new statement goes before the next class that the file has",
        ),
    ],
)
def test_joined(own: str, expected: str) -> None:
    assert joined(BASE, own) == expected


def test_a_comment_that_would_be_lost_is_refused() -> None:
    with pytest.raises(ValueError, match="# lost"):
        joined(BASE, "class Block: ...\n# lost\n")


def test_a_line_of_a_diff_without_a_mark_is_refused() -> None:
    assert sides(" a\n\n-b\n+c\n") == ("a\n\nb\n", "a\n\nc\n")
    with pytest.raises(ValueError, match="'a'"):
        sides("a\n")


def test_each_file_of_a_case_has_its_own_prelude() -> None:
    expected, files = files_of(
        "# CKPT001 safe | class FooLayer\n# prelude: plain\n# file: models/bar/modeling_bar.py\n# prelude: gcl\n"
        "# file: plain.py\nimport os\n"
    )
    assert [finding.code for finding in expected] == ["CKPT001"]
    assert list(files) == [FOO, "models/bar/modeling_bar.py", "plain.py"]
    assert "class FooLayer(nn.Module):" in files[FOO]
    assert "class FooLayer(GradientCheckpointingLayer):" in files["models/bar/modeling_bar.py"]
    assert files["plain.py"] == "import os\n"
