"""The scripts on the pages about other packages run as they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import fenced, read
from tests.integrations.local_files import model_folder, python

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("page", "package"), [("trainers", "trl"), ("lightning", "lightning")])
def test_the_scripts_of_a_page_train_and_prove_their_blocks(tmp_path: Path, page: str, package: str) -> None:
    pytest.importorskip(package)
    model_folder(tmp_path / "model")
    scripts = [block.text for block in fenced(read(f"docs/how-to/{page}.md")) if block.language == "fragment"]
    assert scripts, "the page has no block `python title=`"
    for script in scripts:
        (tmp_path / "train.py").write_text(script, encoding="utf-8")
        done = python(tmp_path, "train.py")
        assert done.returncode == 0, done.stderr
        assert "blocks proved" in done.stdout
        assert " 0 of " not in done.stdout
