"""`make gpu` keeps measurements, resumes after an interruption, and its page lists what is missing and why.

The parts are small scripts in processes; `test_parts` runs the code of the real ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import page
from benchmarks.gpu.machine import Machine, attention_kernel, seen, this_machine, why_no_gpu
from benchmarks.gpu.page import bars, section, summary, write_page
from benchmarks.gpu.parts import PARTS, Part, Result, State
from benchmarks.progress import read_json
from tests.docs.pages import prose_faults

pytestmark = pytest.mark.torch

ROOT = Path(gpu.__file__).parents[2]
FIGURES = {
    "8K: peak, ours": {"values": [3.0, 1.0, 2.0], "unit": "GB", "target": "", "verdict": ""},
    "8K: a step, ours": {"values": [5.0], "unit": "s", "target": "", "verdict": ""},
    "8K: peak, ours / theirs": {"values": [1.2], "unit": "x", "target": "at most 1", "verdict": "missed"},
}
WRITE = f"out.write_text(json.dumps({{'figures': {FIGURES!r}}}))"
MACHINE = Machine("a device", versions={"torch": "2.13.0"})


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "this_machine", lambda *, dry: MACHINE)
    monkeypatch.setattr(gpu, "code_digest", lambda: "code")
    monkeypatch.setattr("benchmarks.gpu.process.import_once", lambda: None)  # it changes the environment


def script(tmp_path: Path, text: str, name: str = "own", **options: Any) -> Part:
    """Make a part of a script, expected to take 20 seconds."""
    file = tmp_path / f"{name}.py"
    file.write_text(f"import json, os, pathlib, sys, time\nout = pathlib.Path(sys.argv[-1])\n{text}\n")
    return replace(Part(name, "What?", "it is so", (str(file),), 20, toy=()), **options)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *parts: Part, more: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run these parts as a dry run; return the exit code and the page."""
    monkeypatch.setattr(gpu, "PARTS", parts)
    code = gpu.main(["--dry", "--out", str(tmp_path / "out"), *more])
    return code, (tmp_path / "out" / "gpu.md").read_text(encoding="utf-8")


def counting(tmp_path: Path) -> tuple[Part, Path]:
    """Make a part that counts its runs in a file."""
    count = tmp_path / "count"
    count.write_text("")
    return script(tmp_path, f"p = pathlib.Path({str(count)!r}); p.write_text(p.read_text() + 'x'); {WRITE}"), count


def test_a_finished_part_is_kept_until_asked_for_again_or_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part, count = counting(tmp_path)
    run(tmp_path, monkeypatch, part)
    run(tmp_path, monkeypatch, part)
    assert count.read_text() == "x"
    assert "kept from an earlier run" in capsys.readouterr().err
    run(tmp_path, monkeypatch, part, more=("--again",))
    assert count.read_text() == "xx"
    changes: dict[str, tuple[str, Any]] = {
        "code": ("code_digest", lambda: "other code"),
        "commit": ("commit", lambda: "another commit"),
        "torch": ("this_machine", lambda *, dry: replace(MACHINE, versions={"torch": "2.14.0"})),
        "device and torch": ("this_machine", lambda *, dry: replace(MACHINE, device="another device")),
    }
    for runs, (changed, (name, value)) in enumerate(changes.items(), 3):
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
        script(tmp_path, WRITE, "fine"),
    )
    code, text = run(tmp_path, monkeypatch, *parts)
    assert code == 1
    assert "Would prove that it is so." in text
    assert "Not measured: the command ended with 1: no kernel image." in text
    assert "Not measured: it was killed by signal 9." in text
    assert "Not all measured: the command ended with 1: illegal memory access. What it had measured by then:" in text
    assert "Not all measured: it was stopped after 2 s. What it had measured by then:" in text
    assert [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| [What?]")] == [
        "failed",
        "failed",
        "failed",
        "stopped",
        "1 of 1 target missed",
    ]


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


def test_parts_that_would_not_fit_in_the_time_are_skipped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = script(tmp_path, WRITE, "short", seconds=20), script(tmp_path, WRITE, "long", seconds=90)
    code, text = run(tmp_path, monkeypatch, short, long, more=("--minutes", "1"))
    assert code == 1
    assert "| skipped | 0 s |" in text
    assert "Skipped: it takes about 90 s, and of 1 minutes" in text
    code, text = run(tmp_path, monkeypatch, short, long, more=("--minutes", "3"))
    assert code == 0, "in a dry run no target is missed"
    assert "Skipped" not in text


def test_a_part_whose_package_is_not_installed_is_skipped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = script(tmp_path, WRITE, "poor", needs=("json", "no_such_package")), script(tmp_path, WRITE, "fine")
    code, text = run(tmp_path, monkeypatch, *parts)
    assert code == 0
    assert "Skipped: no_such_package is not installed." in text
    assert [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| [What?]")] == [
        "skipped",
        "1 of 1 target missed",
    ]


def test_without_matplotlib_the_page_has_no_pictures_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    part = next(part for part in PARTS if part.name == "offload")
    write_page(tmp_path / "page.md", [Result(part, State.ENDED, "", FIGURES, 3.0)], {"device": "H100"}, dry=False)
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "There are no pictures: matplotlib is not installed." in text
    assert "offload.svg" not in text


def test_all_parts_together_fit_in_the_time() -> None:
    assert sum(part.seconds for part in PARTS) <= 60 * gpu.MINUTES
    assert PARTS[0].name == "tests", "the most telling first"
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_a_run_that_is_killed_takes_its_part_along_and_the_next_goes_on(tmp_path: Path) -> None:
    # The part keeps one measurement, and waits; the run is killed; the next run makes the second one alone.
    text = """
import time
from benchmarks.device import PROCESSOR
from benchmarks.figures import Figure
from benchmarks.progress import Progress
progress = Progress("own", out, lambda kept: [Figure(n, (v,), "s") for n, v in kept.items()], PROCESSOR, resume=True)
progress.measure("first", lambda: os.getpid())
if not pathlib.Path(__file__).with_name("go").exists():
    time.sleep(300)
progress.measure("second", lambda: os.getpid())
out.write_text(progress.text)
"""
    part = script(tmp_path, text)
    out = tmp_path / "out"
    main = f"""
import sys
from pathlib import Path
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.parts import Part
gpu.this_machine = lambda *, dry: Machine("a device")
gpu.code_digest = lambda: "code"
gpu.PARTS = (Part("own", "What?", "it is so", ({part.arguments[0]!r},), 200, toy=()),)
sys.exit(gpu.main(["--dry", "--out", {str(out)!r}]))
"""
    command = [sys.executable, "-c", main]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    kept: dict[str, int] = {}
    deadline = time.monotonic() + 60
    while not kept and time.monotonic() < deadline:
        time.sleep(0.05)
        kept = read_json(out / "own.json").get("kept", {})
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert list(kept) == ["first"]
    while _runs(kept["first"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(kept["first"]), "the part has ended with its run"
    (tmp_path / "go").touch()
    assert subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, check=False).returncode == 0
    content = json.loads((out / "own.json").read_text(encoding="utf-8"))
    assert content["kept"]["first"] == kept["first"] != content["kept"]["second"]
    assert content["state"] == State.ENDED


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
        status = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_part_finds_its_imports_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a new process it would have to import them again, which takes longer than many a measurement.
    part = script(tmp_path, f"assert {{'torch', 'transformers'}} <= set(sys.modules); {WRITE}")
    assert run(tmp_path, monkeypatch, part)[0] == 0


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


def test_the_page_shows_medians_and_a_plot_for_each_unit(tmp_path: Path) -> None:
    part = next(part for part in PARTS if part.name == "offload")
    result = Result(part, State.ENDED, "", FIGURES, 3.0)
    assert not result.ok
    assert "1 of 1 target missed" in summary([result])
    assert "| 8K: peak, ours | 2 | GB |" in section(result, "")
    assert bars(result) == {"GB": {"8K: peak, ours": 2.0}, "s": {"8K: a step, ours": 5.0}}
    write_page(tmp_path / "page.md", [result], {"device": "H100"}, dry=False)
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "](page/offload.svg)" in text
    picture = (tmp_path / "page" / "offload.svg").read_bytes()
    write_page(tmp_path / "page.md", [result], {"device": "H100"}, dry=False)
    assert (tmp_path / "page" / "offload.svg").read_bytes() == picture
    write_page(tmp_path / "page.md", [Result(part)], {"device": "H100"}, dry=False)
    assert "Not run yet." in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert not (tmp_path / "page" / "offload.svg").exists(), "no picture of what is not measured"


def test_what_the_page_names_and_links_to_exists(tmp_path: Path) -> None:
    # The tests of the pages ask the same of every page: the first run on a GPU must not break them.
    results = [
        Result(
            part, State.ENDED, "", FIGURES, 3.0, failed=["tests/gpu/test_offload.py::test_it[a-b]"], no_room=["32K"]
        )
        for part in PARTS
    ]
    write_page(tmp_path / "gpu.md", results, gpu.described(gpu.Run(tmp_path, MACHINE, False, 0), results), dry=False)
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert prose_faults(text, str(tmp_path / "gpu.md")) == []
    assert prose_faults(f"{text} [it](#nowhere)", str(tmp_path / "gpu.md")) == ["no target #nowhere"]


def test_without_a_gpu_nothing_is_measured_and_the_reason_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "this_machine", lambda *, dry: Machine("", problem="torch is built without CUDA"))
    assert gpu.main([]) == 2
    assert "gpu: torch is built without CUDA." in capsys.readouterr().err


def test_the_kernel_of_attention_is_named() -> None:
    assert attention_kernel("cpu") == "flash_attention"


def test_why_torch_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    assert "is built without CUDA" in why_no_gpu()
    monkeypatch.setattr("torch.version.cuda", "13.0")

    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12040)")

    monkeypatch.setattr("torch.cuda.init", init)
    assert "is too old (found version 12040)" in why_no_gpu()
    assert "for an older CUDA" in why_no_gpu()


def test_the_page_in_the_repository_is_of_no_dry_run() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert text.startswith(page._INTRODUCTION)
    assert page._DRY not in text


def test_another_process_sees_the_same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_machine(dry=True) == seen(dry=True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert seen(dry=False).problem == why_no_gpu()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "could not look for a GPU" in this_machine(dry=True).problem
