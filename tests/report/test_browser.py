"""The page in a headless Chromium: it renders, filters, sorts, folds and makes no requests.

`page_faults` is the check of every test here; two tests break the page and see it fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_surgery.report.html import html_page
from tests.report import browser as browser_module
from tests.report import examples
from tests.report.browser import Browser, required_programs, running_browser

VISIBLE = """return [...document.querySelectorAll(".model")].filter((model) => model.checkVisibility())
    .map((model) => model.dataset.name)"""
TYPE = """const filter = document.getElementById("filter"); filter.value = arguments[0];
    filter.dispatchEvent(new Event("input"))"""
CLICK = "document.querySelector(arguments[0]).click()"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "kinds": html_page(examples.every_kind()),
        "one": html_page([examples.drifted()]),
        "none": html_page([]),
    }


@pytest.fixture
def kinds(browser: Browser, pages: dict[str, str], tmp_path: Path) -> Browser:
    """Open the page of every kind of report."""
    assert page_faults(browser, tmp_path, pages["kinds"]) == []
    return browser


def page_faults(browser: Browser, folder: Path, text: str) -> list[str]:
    """Open a page and list what is wrong: console messages, requests, rows that are missing."""
    page = folder / "page.html"
    page.write_text(text, encoding="utf-8")
    browser.open(page)
    faults = [f"console: {message}" for message in browser.messages()]
    faults += [f"request: {url}" for url in browser.requests()]
    counted = browser.run("return document.getElementById('shown').value")
    rows = len(browser.run(VISIBLE))
    return faults + ([] if counted.startswith(f"{rows:,} of") else [f"{rows} rows are visible, and it says {counted}"])


@pytest.mark.parametrize("kind", ["kinds", "one", "none"])
def test_the_page_opens_without_a_message_or_a_request(
    browser: Browser, pages: dict[str, str], tmp_path: Path, kind: str
) -> None:
    assert page_faults(browser, tmp_path, pages[kind]) == []


def test_a_page_whose_script_breaks_is_seen(browser: Browser, pages: dict[str, str], tmp_path: Path) -> None:
    broken = pages["kinds"].replace("refresh();\n</script>", "missing_function();\n</script>")
    assert broken != pages["kinds"]
    (fault,) = page_faults(browser, tmp_path, broken)
    assert fault.startswith("console: ")
    assert "missing_function is not defined" in fault


def test_a_page_that_asks_the_network_is_seen(browser: Browser, pages: dict[str, str], tmp_path: Path) -> None:
    image = '<img alt="" src="http://127.0.0.1:9/pixel.png">'
    asking = pages["kinds"].replace("</body>", f"{image}</body>")
    without_policy = asking.replace("Content-Security-Policy", "x-nothing")
    assert any(
        fault == "request: http://127.0.0.1:9/pixel.png" for fault in page_faults(browser, tmp_path, without_policy)
    )
    assert any("Content Security Policy" in fault for fault in page_faults(browser, tmp_path, asking))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("gemma3n", {"gemma3nforcausallm"}),
        ("CKPT006", {"swinmodel"}),
        ("reentrant values", {"gemma3nforcausallm", "hugemodel"}),
        ("no such model", set()),
    ],
    ids=["a class", "a rule", "a mode and a level", "nothing"],
)
def test_the_filter_leaves_what_matches(kinds: Browser, typed: str, expected: set[str]) -> None:
    kinds.run(TYPE, typed)
    assert {name.split("<")[0] for name in kinds.run(VISIBLE)} == expected
    assert kinds.run("return document.getElementById('nothing').checkVisibility()") == (not expected)
    assert kinds.run("return document.getElementById('shown').value") == f"{len(expected)} of 10"
    kinds.run(TYPE, "")
    assert len(kinds.run(VISIBLE)) == 10


def test_toggles_hide_what_failed_and_a_cause_finds_its_models(kinds: Browser) -> None:
    kinds.run(CLICK, ".toggle.failed input")
    assert kinds.run(VISIBLE) == ["llamaforcausallm", "foomodel", "timmbackbone"]
    kinds.run(CLICK, ".toggle.failed input")
    kinds.run(CLICK, ".causes button[data-find=CKPT001]")
    assert kinds.run(VISIBLE) == ["gptbigcodeforcausallm"]
    kinds.run(CLICK, ".causes button[data-find=CKPT001]")
    assert len(kinds.run(VISIBLE)) == 10
    assert kinds.messages() == []


def test_details_fold_out_and_in(kinds: Browser) -> None:
    first = ".model[data-name=gemma3nforcausallm]"
    seen = "return document.querySelector(arguments[0]).checkVisibility()"
    assert kinds.run(seen, f"{first} .plot svg") is False
    kinds.run(CLICK, f"{first} > summary")
    assert kinds.run(seen, f"{first} .plot svg") is True
    assert (
        kinds.run("return document.querySelector(arguments[0]).getBoundingClientRect().height", f"{first} svg") > 100
    )
    kinds.run(CLICK, f"{first} > summary")
    assert kinds.run(seen, f"{first} .plot svg") is False
    kinds.run(CLICK, "#unfold")
    opened = "return document.querySelectorAll('.model[open]').length"
    assert kinds.run(opened) == 10
    kinds.run(CLICK, "#fold")
    assert kinds.run(opened) == 0
    assert kinds.messages() == []


def test_columns_sort_up_and_down_and_back(kinds: Browser) -> None:
    original = kinds.run(VISIBLE)
    kinds.run(CLICK, "[data-sort=name]")
    assert kinds.run(VISIBLE) == sorted(original)
    kinds.run(CLICK, "[data-sort=name]")
    assert kinds.run(VISIBLE) == sorted(original, reverse=True)
    kinds.run(CLICK, "[data-sort=name]")
    assert kinds.run(VISIBLE) == original
    for order in (1, -1):
        kinds.run(CLICK, "[data-sort=saved]")
        saved = kinds.run("return [...document.querySelectorAll('.model')].map((model) => model.dataset.saved)")
        shares = [float(share) for share in saved if share]
        assert shares == sorted(shares, key=lambda share: order * share)
        assert saved[len(shares) :] == ["", ""]


def test_nothing_from_a_report_becomes_an_element(kinds: Browser) -> None:
    assert kinds.run("return document.querySelectorAll('script').length") == 1
    assert examples.HOSTILE in kinds.run("return document.querySelector('[data-name^=\"evil\"]').textContent")


def test_colours_follow_the_scheme_and_every_id_is_unique(
    browser: Browser, pages: dict[str, str], tmp_path: Path
) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    grounds = set()
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.developer("Emulation.setEmulatedMedia", features=[feature])
        assert page_faults(browser, tmp_path, pages["kinds"]) == []
        grounds.add(browser.run(ground))
    browser.developer("Emulation.setEmulatedMedia", features=[])
    assert len(grounds) == 2
    ids = browser.run("return [...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("width", [420, 1000, 1280])
def test_no_column_of_the_table_is_out_of_sight(
    browser: Browser, pages: dict[str, str], tmp_path: Path, width: int
) -> None:
    browser.developer("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    try:
        assert page_faults(browser, tmp_path, pages["kinds"]) == []
        beside = """const table = document.querySelector(".scroller").getBoundingClientRect().right;
            return [...document.querySelectorAll(".scroller .cell, .scroller .saved")]
                .filter((cell) => cell.getBoundingClientRect().right > table).length"""
        assert browser.run(beside) == 0
        browser.run("document.querySelector('.scroller').style.setProperty('--cell', '9rem')")
        assert browser.run(beside) > 0
    finally:
        browser.developer("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize(("in_ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_a_browser_a_test_is_skipped_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, in_ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", in_ci)
    monkeypatch.setattr(browser_module, "programs", lambda: None)
    with pytest.raises(outcome, match="install Debian's chromium and chromium-driver"):
        required_programs()
