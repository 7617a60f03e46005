"""`make gpu`: a dry run holds together, what was measured is kept, and the page says what failed or was missed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import page
from benchmarks.gpu.page import NOT_RUN, Result, bars, section, summary, write_page
from benchmarks.gpu.parts import PARTS, Part

pytestmark = pytest.mark.torch

ROOT = Path(gpu.__file__).parents[2]
FIGURES = {
    "8K: peak, ours": {"values": [3.0, 1.0, 2.0], "unit": "GB", "target": "", "verdict": ""},
    "8K: peak, ours / theirs": {"values": [1.2], "unit": "x", "target": "at most 1", "verdict": "missed"},
}


def script(tmp_path: Path, text: str) -> Part:
    """A part that runs a script of the test's own."""
    file = tmp_path / "part.py"
    file.write_text(f"import json, pathlib, sys\nout = pathlib.Path(sys.argv[-1])\n{text}\n")
    return Part("own", "What?", (str(file),), 20)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *parts: Part, again: bool = False) -> tuple[int, str]:
    """The exit code and the page of a dry run of these parts."""
    monkeypatch.setattr(gpu, "PARTS", parts)
    code = gpu.main(["--dry", "--out", str(tmp_path / "out"), *(["--again"] if again else [])])
    return code, (tmp_path / "out" / "gpu.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_part_runs_through_on_the_processor(tmp_path: Path) -> None:
    out = tmp_path / "out"
    gpu.main(["--dry", "--out", str(out)])  # figures of toy sizes may miss their targets
    for part in PARTS:
        content = json.loads((out / f"{part.name}.json").read_text(encoding="utf-8"))
        assert content["problem"] == "", part.name
        assert any(figure["values"] for figure in content["figures"].values()), part.name
    tests = json.loads((out / "tests.json").read_text(encoding="utf-8"))
    assert tests["failed"] == []
    text = (out / "gpu.md").read_text(encoding="utf-8")
    assert "A dry run" in text
    assert all(f"## {part.question}" in text for part in PARTS)
    assert {picture.stem for picture in (out / "gpu").glob("*.svg")} >= {"step_memory", "fused_loss", "tiled_mlp"}


def test_a_finished_part_is_kept_until_it_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    count.write_text("")
    append = f"count = pathlib.Path({str(count)!r}); count.write_text(count.read_text() + 'x')"
    part = script(tmp_path, f"{append}; out.write_text(json.dumps({{'figures': {{}}}}))")
    run(tmp_path, monkeypatch, part)
    run(tmp_path, monkeypatch, part)
    assert count.read_text() == "x"
    run(tmp_path, monkeypatch, part, again=True)
    assert count.read_text() == "xx"
    monkeypatch.setattr(gpu, "installed_versions", lambda: {"torch": "0"})
    run(tmp_path, monkeypatch, part)
    assert count.read_text() == "xxx", "other versions measure anew"


def test_a_part_that_fails_or_never_ends_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = script(tmp_path, f"out.write_text(json.dumps({{'figures': {FIGURES!r}}}))")
    broken = replace(fine, name="broken", arguments=("-c", "raise SystemExit(3)"))
    endless = replace(fine, name="endless", arguments=("-c", "import time; time.sleep(60)"), seconds=1)
    code, text = run(tmp_path, monkeypatch, broken, endless, fine)
    assert code == 1
    assert "Not measured: the command ended with 3." in text
    assert "Not measured: it was stopped after 1 s." in text
    assert "| 8K: peak, ours / theirs | 1.2 | x | at most 1 | missed |" in text


def test_a_missed_target_is_told_and_counts(tmp_path: Path) -> None:
    result = Result(PARTS[0], "", FIGURES, 3.0)
    assert not result.ok
    assert "1 of 1 target missed" in summary([result])
    met = {name: {**figure, "verdict": figure["verdict"] and "ok"} for name, figure in FIGURES.items()}
    assert Result(PARTS[0], "", met, 3.0).ok


def test_the_page_shows_medians_and_bars_of_one_unit(tmp_path: Path) -> None:
    result = Result(PARTS[0], "", FIGURES, 3.0)
    assert "| 8K: peak, ours | 2 | GB |" in section(result, "")
    assert bars(result) == ("GB", {"8K: peak, ours": 2.0})
    write_page(tmp_path / "page.md", [result], {"device": "H100"}, dry=False)
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| device | H100 |" in text
    assert "dry run" not in text
    assert "](page/offload.svg)" in text
    picture = (tmp_path / "page" / "offload.svg").read_bytes()
    write_page(tmp_path / "page.md", [result], {"device": "H100"}, dry=False)
    assert (tmp_path / "page" / "offload.svg").read_bytes() == picture


def test_without_a_gpu_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main([]) == 2
    assert "torch sees no CUDA GPU here" in capsys.readouterr().err


def test_the_page_in_the_repository_was_made_by_the_program() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    if text != NOT_RUN:
        assert text.startswith(page._INTRODUCTION)
        assert "A dry run" not in text


def test_the_environment_needs_nothing_but_python() -> None:
    source = (ROOT / "benchmarks" / "gpu" / "environment.py").read_text(encoding="utf-8")
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= {*sys.stdlib_module_names, "__future__"}
