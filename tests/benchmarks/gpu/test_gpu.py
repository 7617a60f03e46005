"""`make gpu` keeps measurements, resumes after an interruption, and its page lists what is missing and why.

The parts are small scripts in processes; `test_parts` runs the code of the real ones.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.device import Device
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import page
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import PARTS, Part, Result, State
from ckpt_surgery.optional import TESTED
from tests.docs.pages import prose_faults

pytestmark = pytest.mark.torch

ROOT = Path(gpu.__file__).parents[2]
FIGURES = {
    "8K: peak, ours": {"values": [3.0, 1.0, 2.0], "unit": "GB", "target": "", "verdict": ""},
    "8K: peak, ours / theirs": {"values": [1.2], "unit": "x", "target": "at most 1", "verdict": "missed"},
}
WRITE = f"out.write_text(json.dumps({{'figures': {FIGURES!r}}}))"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpu_name", lambda: ("a device", ""))
    monkeypatch.setattr(gpu, "installed_versions", lambda: {"torch": "2.13.0"})
    monkeypatch.setattr(gpu, "code_digest", lambda: "code")


def script(tmp_path: Path, text: str, name: str = "own", **options: Any) -> Part:
    """Make a part of a script, expected to take 20 seconds."""
    file = tmp_path / f"{name}.py"
    file.write_text(f"import json, os, pathlib, sys, time\nout = pathlib.Path(sys.argv[-1])\n{text}\n")
    return replace(Part(name, "What?", "it is so", (str(file),), 20, toy=()), **options)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *parts: Part, minutes: int = 40) -> tuple[int, str]:
    """Run these parts as a dry run; return the exit code and the page."""
    monkeypatch.setattr(gpu, "PARTS", parts)
    code = gpu.main(["--dry", "--out", str(tmp_path / "out"), "--minutes", str(minutes)])
    return code, (tmp_path / "out" / "gpu.md").read_text(encoding="utf-8")


def verdicts(text: str) -> list[str]:
    return [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| [What?]")]


def test_a_finished_part_is_kept_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = tmp_path / "count"
    count.write_text("")
    part = script(tmp_path, f"p = pathlib.Path({str(count)!r}); p.write_text(p.read_text() + 'x'); {WRITE}")
    run(tmp_path, monkeypatch, part)
    run(tmp_path, monkeypatch, part)
    assert count.read_text() == "x"
    assert "kept from an earlier run" in capsys.readouterr().err
    changes: dict[str, tuple[str, Any]] = {
        "sources": ("code_digest", lambda: "other code"),
        "torch": ("installed_versions", lambda: {"torch": "2.14.0"}),
        "device": ("PROCESSOR", Device("cpu", "another")),
    }
    for runs, (changed, (name, value)) in enumerate(changes.items(), 2):
        monkeypatch.setattr(gpu, name, value)
        run(tmp_path, monkeypatch, part)
        assert count.read_text() == "x" * runs
        assert f"measured anew, because this is another {changed} than" in capsys.readouterr().err


def test_a_part_that_fails_dies_or_hangs_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = WRITE.replace("}))", ", 'finished': False}))")
    parts = (
        script(tmp_path, "raise SystemExit('no kernel image')", "broken"),
        script(tmp_path, "os.kill(os.getpid(), 9)", "killed"),
        script(tmp_path, f"{partial}; print('illegal memory access', file=sys.stderr); sys.exit(1)", "half"),
        script(tmp_path, f"{partial}; time.sleep(60)", "endless", seconds=1),
        script(tmp_path, "pass", "silent"),
        script(tmp_path, WRITE, "poor", needs=("json", "no_such_package")),
        script(tmp_path, WRITE, "fine"),
    )
    code, text = run(tmp_path, monkeypatch, *parts)
    assert code == 1
    assert "Would prove that it is so." in text
    assert "Not measured: the command ended with 1: no kernel image." in text
    assert "Not measured: it was killed by signal 9." in text
    assert "Not all measured: the command ended with 1: illegal memory access. What it had measured by then:" in text
    assert "Not all measured: it was stopped after 2 s. What it had measured by then:" in text
    assert "Skipped: no_such_package is not installed." in text
    assert verdicts(text) == ["failed", "failed", "failed", "stopped", "failed", "skipped", "1 of 1 target missed"]


def test_without_room_and_with_errors_inside_a_part_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"no_room": ["32K, none"], "errors": {"8K, ours": "ValueError: what"}, "notes": ["a package is missing"]}
    part = script(tmp_path, f"out.write_text(json.dumps({{'figures': {FIGURES!r}, **{more!r}}}))")
    code, text = run(tmp_path, monkeypatch, part)
    assert code == 1
    assert "The device has too little memory for: 32K, none." in text
    assert "Failed: 8K, ours (`ValueError: what`)." in text
    assert "A package is missing." in text
    assert "1 of 1 target missed and 1 measurement failed" in text
    assert Result.of(part, {"state": State.ENDED, "no_room": ["32K, none"]}).ok, "less memory is no fault"


def test_parts_that_would_not_fit_in_the_time_are_skipped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = script(tmp_path, WRITE, "short", seconds=20), script(tmp_path, WRITE, "long", seconds=90)
    code, text = run(tmp_path, monkeypatch, short, long, minutes=1)
    assert code == 1
    assert "Skipped: it takes about 90 s, and of 1 minutes" in text
    code, text = run(tmp_path, monkeypatch, short, long, minutes=3)
    assert code == 0, "in a dry run no target is missed"
    assert "Skipped" not in text


def test_all_parts_together_fit_in_the_time() -> None:
    assert sum(part.seconds for part in PARTS) <= 60 * gpu.MINUTES
    assert PARTS[0].name == "tests", "the most telling first"


def test_a_dry_run_sees_no_gpu_and_a_real_run_writes_the_docs_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = f"pathlib.Path({str(tmp_path)!r}, 'seen').write_text(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    part = script(tmp_path, f"{note}; {WRITE}")
    _, text = run(tmp_path, monkeypatch, part)
    assert (tmp_path / "seen").read_text() == "''"
    assert "**A dry run: toy sizes on the processor." in text
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu.main([])
    assert (tmp_path / "seen").read_text() == "None"
    text = (tmp_path / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert "dry run" not in text
    assert "| device | a device |" in text
    assert "| 8K: peak, ours | 2 | GB |" in text, "medians"


def test_what_the_page_names_and_links_to_exists(tmp_path: Path) -> None:
    # The tests of the pages ask the same of every page: the first run on a GPU must not break them.
    failed = ["tests/gpu/test_offload.py::test_it[a-b]"]
    results = [Result(part, State.ENDED, "", FIGURES, 3.0, failed=failed, no_room=["32K"]) for part in PARTS]
    write_page(tmp_path / "gpu.md", results, {}, dry=False)
    assert prose_faults((tmp_path / "gpu.md").read_text(encoding="utf-8"), str(tmp_path / "gpu.md")) == []


def test_make_ends_where_something_is_missing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")  # without its packages
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "gpu", "DRY=1", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert all(f"{name} {oldest}" in done.stderr for name, (oldest, _) in TESTED.items())


def test_without_a_gpu_nothing_is_measured_and_the_reason_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.main([]) == 2
    assert "gpu: torch finds no GPU that it can use (" in capsys.readouterr().err


def test_the_page_in_the_repository_is_of_no_dry_run() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert text.startswith(page._INTRODUCTION)
    assert page._DRY not in text
