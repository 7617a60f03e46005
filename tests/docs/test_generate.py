"""The generated pages are up to date and complete, and their check fails if they are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ckpt_surgery.codemods import RULES
from docs import generate
from docs.hooks import with_rules

ROOT = Path(__file__).parents[2]


def test_the_generated_pages_are_up_to_date() -> None:
    assert generate.differences() == [], "run: python -m docs.generate"


def test_a_page_that_was_edited_by_hand_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = generate.pages()
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    assert generate.differences() == []
    (tmp_path / "reference/cli.md").write_text(pages["reference/cli.md"].replace("--select", "--slect"))
    (tmp_path / "rules/CKPT003.md").unlink()
    (tmp_path / "rules/CKPT999.md").write_text("# A rule that is gone\n")
    assert generate.differences() == ["reference/cli.md", "rules/CKPT003.md", "rules/CKPT999.md"]


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = yaml.safe_load(re.sub(r"!!python/name:\S+", "", text))["nav"]
    listed = re.findall(r"[\w./-]+\.md", str(with_rules(navigation)))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - {*listed} == set(), "in docs/, and not in the navigation of mkdocs.yml"
    assert {*listed} - pages == set(), "in the navigation of mkdocs.yml, and not in docs/"
    assert len(listed) == len(pages), "a page is in the navigation twice"


def test_the_table_of_rules_says_which_are_repaired() -> None:
    index = generate.rules_index()
    rows = dict(re.findall(r"^\| \[(CKPT\d+)\].* \| (.*) \|$", index, re.MULTILINE))
    assert set(rows) == {rule.code for rule in RULES}
    assert rows["CKPT003"] == "yes, where it is safe"
    assert rows["CKPT005"] == "with `--unsafe`"
    assert rows["CKPT006"] == "by hand"


def test_the_reference_has_the_groups_of_the_help() -> None:
    (section,) = re.findall(r"^## run\n(.*?)^## ", generate.cli_page(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    assert rows.index("`--help`") + 1 == rows.index("**What is wrapped**") == rows.index("`--wrap / --no-wrap`") - 1
