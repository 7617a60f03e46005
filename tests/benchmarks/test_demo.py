"""The demo shows what `apply` did, and the diff that it names is one that git takes."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import demo
from benchmarks.releases import ReleaseError
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import ApplyResult, FileChange, Note, Problem, Progress

TOY = Path("src/transformers/models/toy/modeling_toy.py")
OTHER = Path("src/transformers/models/other/modeling_other.py")


class FakeApply:
    """Stands for `ckpt_surgery.apply`: replaces a word in the toy model and gives a prepared report."""

    def __init__(self, *, problems: tuple[Problem, ...] = (), pretended: str = "") -> None:
        self.problems = problems
        self.pretended = pretended
        self.unsafe: bool | None = None

    def __call__(self, paths: list[Path], *, unsafe: bool, progress: Progress | None) -> ApplyResult:
        (models,) = paths
        self.unsafe = unsafe
        path = models / "toy/modeling_toy.py"
        before = path.read_text()
        after = before.replace("plain", "repaired")
        path.write_text(after)
        change = FileChange(str(path), self.pretended or before, after, ("CKPT001",))
        other = str(models / "other/modeling_other.py")
        left = (
            finding("CKPT006", str(path), "toy", Applicability.UNSAFE),
            finding("CKPT003", other, "other", Applicability.UNSAFE),
            finding("CKPT001", other, "other", Applicability.INFO),
        )
        findings = (finding("CKPT001", str(path), "toy", Applicability.SAFE), *left)
        notes = (Note("toy", "a comment had to go"),)
        return ApplyResult((change,), findings, left, self.problems, notes, 2, True, 1.25)


def finding(code: str, path: str, family: str, applicability: Applicability) -> Finding:
    """A finding of which only rule, family and applicability matter."""
    return Finding(code, path, 1, 1, "Toy", "a message", applicability, family)


@pytest.fixture
def pristine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unpacked release of two models, which `fetch` hands out."""
    root = tmp_path / "cache" / "transformers-4.57.6"
    for path in (TOY, OTHER):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text("one\nplain\nthree\n")
    (root / ".unpacked").write_text("stamp")
    monkeypatch.setattr(demo, "fetch", lambda version: root / "src" / "transformers")
    return root


def run(out: Path, apply: FakeApply, *, unsafe: bool = False) -> tuple[int, str]:
    """The exit code of the demo and what it printed."""
    text = io.StringIO()
    code = demo.run("4.57.6", out, apply, Console(file=text, width=140), unsafe=unsafe)
    return code, text.getvalue()


def row(output: str, family: str) -> list[str]:
    """The cells of a family's row."""
    (line,) = [line for line in output.splitlines() if f" {family} " in line and "│" in line]
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_only_families_that_changed_have_a_row_and_the_total_counts_all_faults(pristine: Path, tmp_path: Path) -> None:
    code, output = run(tmp_path / "out", FakeApply())
    assert code == 0
    assert row(output, "toy") == ["toy", "1 -> 0", "", "1 -> 1", "1"]
    assert row(output, "all families") == ["all families", "1 -> 0", "1 -> 1", "1 -> 1", "1"]
    assert " other " not in output
    assert "3 faults before, 2 after; 1 of 2 files changed in 1.2 s." in output
    assert "note: toy: a comment had to go" in output


def test_the_release_itself_is_left_as_it_is(pristine: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", FakeApply())
    assert (pristine / TOY).read_text() == "one\nplain\nthree\n"
    assert (tmp_path / "out/4.57.6" / TOY).read_text() == "one\nrepaired\nthree\n"
    assert not (tmp_path / "out/4.57.6/.unpacked").exists()


def test_the_diff_makes_the_repaired_copy_from_the_release(pristine: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", FakeApply())
    subprocess.run(["git", "apply", str(tmp_path / "out/4.57.6.diff")], cwd=pristine, check=True)
    assert (pristine / TOY).read_text() == "one\nrepaired\nthree\n"


def test_a_second_run_starts_again_from_the_release(pristine: Path, tmp_path: Path) -> None:
    first = run(tmp_path / "out", FakeApply())
    (tmp_path / "out/4.57.6/left_over.py").write_text("")
    assert run(tmp_path / "out", FakeApply()) == first
    assert not (tmp_path / "out/4.57.6/left_over.py").exists()


@pytest.mark.parametrize("inside_a_repository", [False, True])
def test_a_diff_that_does_not_apply_is_reported_and_fails(
    pristine: Path, tmp_path: Path, inside_a_repository: bool
) -> None:
    if inside_a_repository:
        subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    code, output = run(tmp_path / "out", FakeApply(pretended="one\nnever there\nthree\n"))
    assert code == 1
    assert "does NOT apply to the release: error: patch failed: src/transformers/models/toy" in output


def test_a_file_that_was_left_out_is_named_and_fails(pristine: Path, tmp_path: Path) -> None:
    code, output = run(tmp_path / "out", FakeApply(problems=(Problem("bad.py", "line 3 does not parse"),)))
    assert code == 1
    assert "problem: bad.py: line 3 does not parse" in output


def test_the_json_has_the_figures_of_the_table(pristine: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", FakeApply())
    figures = json.loads((tmp_path / "out/4.57.6.json").read_text())
    assert figures["families"] == {
        "toy": {"before": {"CKPT001": 1, "CKPT006": 1}, "after": {"CKPT006": 1}, "files_changed": 1}
    }
    assert figures["total"]["before"] == {"CKPT001": 1, "CKPT003": 1, "CKPT006": 1}


@pytest.mark.parametrize("unsafe", [False, True])
def test_unsafe_reaches_apply(pristine: Path, tmp_path: Path, unsafe: bool) -> None:
    apply = FakeApply()
    run(tmp_path / "out", apply, unsafe=unsafe)
    assert apply.unsafe is unsafe


def test_a_release_that_cannot_be_had_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(version: str) -> Path:
        raise ReleaseError("no network: wait")

    monkeypatch.setattr(demo, "fetch", fetch)
    assert demo.main(["--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "demo: no network: wait.\n"


def test_a_folder_that_cannot_be_written_is_one_sentence(
    pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert demo.main(["--out", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("demo: ")
    assert error.count("\n") == 1


def test_the_bar_shows_each_step_once() -> None:
    text = io.StringIO()
    with demo.StepBar(Console(file=text, force_terminal=True, width=80)) as progress:
        progress("reading", 1, 4)
        progress("reading", 2, 4)
        progress("writing", 0, 3)
    assert "2/4" in text.getvalue()
    assert "0/3" in text.getvalue()
