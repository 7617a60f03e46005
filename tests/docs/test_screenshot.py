"""The picture of the page of `verify` is up to date, small, and can be made again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from ckpt_surgery.report.html import html_page
from docs import screenshot
from tests.report import examples
from tests.report.browser import required_programs

MOST_BYTES = 80_000


def description(path: Path) -> str:
    with Image.open(path) as picture:
        return str(picture.info["Description"])


def without_versions(text: str) -> str:
    """Remove what differs between machines and between our versions."""
    return re.sub(r"\b(torch|ckpt-surgery) \S+", r"\1", text)


@pytest.mark.transformers4
@pytest.mark.slow
def test_the_picture_shows_what_verify_says(tmp_path: Path) -> None:
    said = screenshot.text_of(screenshot.verified(tmp_path))
    assert without_versions(description(screenshot.PICTURE)) == without_versions(said), (
        "run: python -m docs.screenshot"
    )


def test_the_picture_is_of_failures_that_are_repaired() -> None:
    text = description(screenshot.PICTURE)
    assert f"transformers {screenshot.RELEASE}" in text
    assert "as they are 4 \u2715 failed 1 \u2713 ok after wrap_blocks 0 \u2715 failed 5 \u2713 ok" in text
    assert all(name in text for name in screenshot.CLASSES)


def test_the_picture_is_small_and_wide_enough() -> None:
    assert screenshot.PICTURE.stat().st_size < MOST_BYTES
    with Image.open(screenshot.PICTURE) as picture:
        assert picture.width == round(screenshot.WIDTH * screenshot.SCALE)


def test_the_text_is_that_of_the_page_without_its_details() -> None:
    lines = screenshot.text_of(html_page(examples.with_repairs())).split("\n")
    assert lines[0].startswith("Gradient checkpointing, verified 9 models \u00b7 transformers 5.23.0")
    assert lines[1].startswith("Causes, by the number of models 2 CKPT001 A block")
    assert len(lines) == 2 + 9
    assert lines[2].startswith("\u2715 Gemma3nForCausalLM , failed in reentrant: values after wrap_blocks: refused")


def test_a_photograph_ends_below_the_table_and_keeps_its_text(tmp_path: Path) -> None:
    browser, _ = required_programs()
    few, many = (
        screenshot.photograph(html_page(reports), browser)
        for reports in (examples.every_kind()[:2], examples.every_kind())
    )
    assert few.width == many.width == round(screenshot.WIDTH * screenshot.SCALE)
    assert few.height < many.height < screenshot.HEIGHT * screenshot.SCALE
    assert few.convert("L").getpixel((0, 0)) == 251  # light, as --ground in the style of the page
    screenshot.write(few, "title \u2715\nsecond line", tmp_path / "few.png")
    assert description(tmp_path / "few.png") == "title \u2715\nsecond line"
    assert (tmp_path / "few.png").stat().st_size < MOST_BYTES


def test_without_a_browser_or_the_release_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["screenshot"])
    monkeypatch.setattr(screenshot, "PICTURE", tmp_path / "none.png")
    monkeypatch.setattr(screenshot, "RELEASE", "0.0.1")
    monkeypatch.setattr(screenshot, "chromium", lambda: "chromium")
    assert screenshot.main() == 2
    assert "The picture shows transformers 0.0.1, and " in capsys.readouterr().err
    monkeypatch.setattr(screenshot, "chromium", lambda: None)
    assert screenshot.main() == 2
    assert "install Debian's package chromium" in capsys.readouterr().err
    assert not (tmp_path / "none.png").exists()
