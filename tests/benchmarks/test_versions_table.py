"""The table of versions: a row for each environment, which says what does not work, and is replaced when run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from benchmarks.versions_report import DOORS, FIGURES, PAGE, Row, page, read_rows, write_rows
from ckpt_surgery.optional import TESTED

RIGHT = Row(
    {"python": "3.11.7", "torch": "2.11.0+cu130", "transformers": "5.17.0"},
    {door: ["LlamaForCausalLM"] for door in DOORS},
    {},
    43,
)
WRONG = replace(
    RIGHT,
    versions={**RIGHT.versions, "torch": "2.8.0"},
    worked={**RIGHT.worked, "save": []},
    reasons={"save": {"LlamaForCausalLM": "AssertionError: no"}},
    missed=("test_a[Llama]",),
)


def test_a_row_says_what_worked_and_the_page_what_did_not() -> None:
    text = page([RIGHT, WRONG])
    lines = [line for line in text.splitlines() if line.startswith("| 2.")]
    assert [line.split(" | ")[:4] for line in lines] == [
        ["| 2.8.0", "5.17.0", "3.11.7", "42 of 43"],
        ["| 2.11.0", "5.17.0", "3.11.7", "43 of 43"],
    ]
    assert lines[1].count("1 of 1") == len(DOORS)
    assert lines[0].count("0 of 1") == 1
    assert "- torch 2.8.0, transformers 5.17.0: `test_a[Llama]` fails." in text
    assert "- torch 2.8.0, transformers 5.17.0: save of `LlamaForCausalLM`: AssertionError: no" in text
    assert "Nothing that is known." in page([RIGHT])


def test_a_row_is_wrong_where_something_does_not_work() -> None:
    assert (RIGHT.wrong, WRONG.wrong) == (False, True)
    assert replace(RIGHT, missed=("a",)).wrong


def test_what_a_later_try_left_out_stays_as_it_was() -> None:
    alone = Row(WRONG.versions, {"compiled save": ["BertForMaskedLM"]})
    assert "| not tried |" in page([alone])
    assert alone.after(WRONG) == replace(WRONG, worked={**WRONG.worked, **alone.worked})
    again = replace(RIGHT, versions=WRONG.versions)
    assert again.after(WRONG) == again


def test_rows_are_kept_in_order(tmp_path: Path) -> None:
    write_rows([RIGHT, WRONG], tmp_path / "rows.json")
    assert read_rows(tmp_path / "rows.json") == [WRONG, RIGHT]


@pytest.mark.torch
def test_every_door_is_tried() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.versions import CLASSES, TRIALS, tried

    assert list(TRIALS) == list(DOORS)
    assert {door: tried(TRIALS[door], "LlamaForCausalLM") for door in DOORS if door != "run"} == dict.fromkeys(
        [door for door in DOORS if door != "run"], ""
    )
    assert len(set(CLASSES)) == len(CLASSES)


@pytest.mark.torch
def test_what_a_door_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.versions import TRIALS, tried
    from ckpt_surgery.runtime.checkpoint.recompute import Computation

    run = Computation.__call__

    def wrong(computation: Computation, *given: object) -> object:
        result = run(computation, *given)  # type: ignore[arg-type]
        return None if result is None else result * 1.5

    monkeypatch.setattr(Computation, "__call__", wrong)
    assert "apart" in tried(TRIALS["wrap"], "LlamaForCausalLM")


def test_no_release_of_torch_was_tried_that_is_not_said_to_be_tested() -> None:
    oldest, newest = map(Version, TESTED["torch"])
    assert all(oldest <= row.key[0] < Version(f"{newest.major}.{newest.minor + 1}") for row in read_rows())


def test_the_page_is_made_from_its_figures() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_rows(FIGURES))
