"""The front page, the quickstart and the pages that answer a question run as pasted, after the install line alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.commands import ROOT
from tests.docs.pages import fail_for, read
from tests.docs.pasted import PASTED, environment, has, install_lines, pasted_faults


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder like a clone, beside an environment from the install line of the front page."""
    folder = tmp_path_factory.mktemp("fresh")
    (line,) = set(install_lines(read("README.md")))
    environment(folder / "environment", line)
    shutil.copytree(ROOT / "examples", folder / "clone" / "examples")
    return folder / "clone"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("page", PASTED)
def test_the_blocks_of_a_page_run_as_pasted_after_its_install_line(page: str, clone: Path) -> None:
    fail_for(pasted_faults(read(page), clone, forked=True))


def test_pages_that_say_how_to_install_say_the_same() -> None:
    first = {page: install_lines(read(page))[:1] for page in PASTED}
    assert {"README.md", "docs/quickstart.md"} <= {page for page, lines in first.items() if lines}
    assert [line for lines in first.values() for line in lines] == [".[torch]"] * sum(map(bool, first.values()))


def test_an_environment_has_what_its_line_brings_and_no_more(tmp_path: Path) -> None:
    alone = environment(tmp_path / "environment", ".")
    assert [has(package, alone) for package in ("libcst", "rich", "torch", "pytest")] == [True, True, False, False]
    (tmp_path / "clone").mkdir()
    asked = "```console\n$ ckpt_surgery rule CKPT001\n...\n$ ckpt_surgery verify llama\n```\n"
    assert "needs torch" in "".join(pasted_faults(asked, tmp_path / "clone"))
    wrong = (
        "```console\n$ ckpt_surgery --version\nckpt_surgery 0\n```\n```pycon\n>>> 1 + 1\n3\n```\n```python\nx\n```\n"
        "```toml\n[tool.other]\n```\n```bash\nls\n```\n"
    )
    assert len(pasted_faults(wrong, tmp_path / "clone")) == 5
