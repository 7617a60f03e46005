"""The command `adopt` without torch: what it shows of the source, what it refuses, and its exit codes.

`prove` is a fake; `tests/adopt/test_live.py` runs the real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery import optional
from ckpt_surgery.adopt.proof import ClassProof
from ckpt_surgery.cli.main import main
from tests.adopt.examples import BAD, GOOD, REENTRANT_BAD, UNBUILT, UNSUPPORTED
from tests.survey.own_code import write_folder
from tests.zoo.own_code_shapes import modeling, write_shape

IMPORTED = "from pathlib import Path\nPath('imported').touch()\n"


class Proofs:
    """A fake measurement: the proofs it answers with, and what it was asked for."""

    def __init__(self) -> None:
        self.answer: Sequence[ClassProof] = (ClassProof(BAD, GOOD),)
        self.error: BaseException | None = None
        self.asked: dict[str, Any] = {}

    def __call__(self, source: object, **options: Any) -> tuple[ClassProof, ...]:
        self.asked = {"source": source, **options}
        if self.error is not None:
            raise self.error
        return tuple(self.answer)

    def pool(self) -> Proofs:
        return self

    def __enter__(self) -> Proofs:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Proofs:
    stand_in = Proofs()
    monkeypatch.setattr("ckpt_surgery.adopt.prove.prove", stand_in)
    monkeypatch.setattr("ckpt_surgery.survey.worker_pool.WorkerPool", stand_in.pool)
    monkeypatch.setattr(optional, "is_installed", lambda name: True)
    monkeypatch.chdir(tmp_path)
    return stand_in


def run(arguments: str) -> int:
    return main(["adopt", *arguments.split()])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class TestWithoutTrust:
    @pytest.mark.parametrize(("shape", "code"), [("old switch", 1), ("by hand", 1), ("healthy", 0)])
    def test_the_findings_and_the_diff_are_shown_and_nothing_is_measured(
        self, proofs: Proofs, capsys: pytest.CaptureFixture[str], shape: str, code: int
    ) -> None:
        write_shape(Path("toy"), shape)
        assert run("toy") == code
        out = capsys.readouterr().out
        assert out.startswith("toy (toy_of_mine): ToyModel in modeling_toy.py\n")
        assert ("CKPT002 [safe]" in out) == (shape == "old switch")
        assert ("--- a/modeling_toy.py\n+++ b/modeling_toy.py\n" in out) == (shape == "old switch")
        assert "the proof needs --trust-remote-code, which runs" in " ".join(out.split())
        assert not proofs.asked

    def test_no_code_is_imported(self, proofs: Proofs) -> None:
        folder = write_folder(Path("toy"), {"modeling_toy": IMPORTED + modeling("module dict")})
        (folder / "__init__.py").write_text(IMPORTED)
        assert run("toy --output out") == 1
        assert not Path("imported").exists()

    def test_it_runs_where_torch_is_not_installed(
        self, proofs: Proofs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(optional, "is_installed", lambda name: False)
        write_shape(Path("toy"), "healthy")
        assert run("toy") == 0
        assert run("toy --trust-remote-code") == 2
        assert "adopt --trust-remote-code needs torch, which is not installed" in capsys.readouterr().err

    def test_a_file_that_does_not_parse_is_an_error(self, proofs: Proofs, capsys: pytest.CaptureFixture[str]) -> None:
        write_folder(Path("toy"), {"modeling_toy": "class:\n"})
        assert run("toy") == 2
        assert "toy/modeling_toy.py: line 1 does not parse" in capsys.readouterr().err


class TestWithTrust:
    def test_every_option_arrives(self, proofs: Proofs) -> None:
        write_shape(Path("toy"), "old switch")
        Path("toy/pyproject.toml").write_text("[tool.ckpt_surgery]\nignore = ['CKPT002']\njobs = 7\n")
        run("toy --trust-remote-code --timeout 5 --jobs 3 --select CKPT002")
        assert (proofs.asked["workers"], proofs.asked["timeout"]) == (3, 5.0)
        assert {finding.code for finding in proofs.asked["source"].repair.findings} == {"CKPT002"}
        run("toy --trust-remote-code")
        assert proofs.asked["workers"] == 7
        assert "CKPT002" not in {finding.code for finding in proofs.asked["source"].repair.findings}

    @pytest.mark.parametrize(
        ("shape", "answer", "pending", "written"),
        [
            ("old switch", [ClassProof(BAD, GOOD)], 1, 0),
            ("old switch", [ClassProof(GOOD, GOOD)], 1, 0),
            ("old switch", [ClassProof(BAD, REENTRANT_BAD)], 1, 1),
            ("old switch", [ClassProof(BAD, GOOD), ClassProof(UNBUILT, UNBUILT)], 1, 1),
            ("old switch", [ClassProof(GOOD, BAD)], 1, 1),
            ("old switch", [ClassProof(UNBUILT)], 2, 2),
            ("by hand", [ClassProof(BAD)], 1, 1),
            ("by hand", [ClassProof(GOOD)], 1, 1),
            ("healthy", [ClassProof(GOOD)], 0, 0),
            ("healthy", [ClassProof(UNSUPPORTED)], 0, 0),
            ("healthy", [ClassProof(REENTRANT_BAD)], 1, 1),
            ("healthy", [ClassProof(UNBUILT)], 2, 2),
            ("healthy", [ClassProof(GOOD), ClassProof(UNBUILT)], 1, 1),
        ],
    )
    def test_the_exit_code(
        self, proofs: Proofs, shape: str, answer: list[ClassProof], pending: int, written: int
    ) -> None:
        write_shape(Path("toy"), shape)
        proofs.answer = answer
        assert run("toy --trust-remote-code") == pending
        assert run("toy --trust-remote-code --write") == written

    def test_only_a_repair_that_makes_nothing_worse_is_written(
        self, proofs: Proofs, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = write_shape(Path("toy"), "old switch")
        before = contents(folder)
        for answer, said in (
            (ClassProof(BAD, GOOD), "--write writes it"),
            (ClassProof(GOOD, BAD), "The repair is refused: with it, ToyModel is worse in "),
            (ClassProof(BAD, UNBUILT), "The repair is refused: with it, ToyModel cannot be run (no tiny"),
            (ClassProof(UNBUILT), "toy is as it was: without a proof nothing is written."),
        ):
            proofs.answer = [answer]
            option = "" if "--write" in said else " --write"
            run(f"toy --trust-remote-code{option}")
            assert said in " ".join(capsys.readouterr().out.split())
            assert contents(folder) == before
        proofs.answer = [ClassProof(BAD, GOOD)]
        assert run("toy --trust-remote-code --write") == 0
        assert capsys.readouterr().out.endswith("Written: modeling_toy.py in toy.\n")
        assert contents(folder) != before

    def test_a_model_that_could_claim_more_is_reported(
        self, proofs: Proofs, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_shape(Path("toy"), "healthy")
        for report, said in (
            (replace(GOOD, supported=False), "claims no support, and would be right with supports_gradient_checkpoin"),
            (replace(BAD, supported=False), "ToyModel: claims no support."),
            (UNSUPPORTED, "ToyModel: claims no support."),
        ):
            proofs.answer = [ClassProof(report)]
            assert run("toy --trust-remote-code") == 0
            assert said in " ".join(capsys.readouterr().out.split())

    def test_an_interrupt_is_one_line(self, proofs: Proofs, capsys: pytest.CaptureFixture[str]) -> None:
        write_shape(Path("toy"), "old switch")
        proofs.error = KeyboardInterrupt()
        assert run("toy --trust-remote-code --write") == 130
        assert capsys.readouterr().err == (
            "ckpt_surgery: interrupted; the folder is as it was, or repaired as a whole\n"
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("gone", "gone does not exist: check the path"),
        ("bare", "bare has no config.json: adopt takes a model's folder; `ckpt_surgery check bare` looks at any code"),
        ("toy --write", "--write needs --trust-remote-code, because only a proved repair is written: "),
        ("toy --output toy/out", "--output toy/out lies in the model's folder: name one outside toy"),
        ("toy --output full", "--output full is not empty, and nothing in it is overwritten: name a new folder"),
        ("toy --timeout 0", "--timeout 0 is not a time limit: give seconds from 0.1 to 86400"),
        ("toy --select CKPT9", "--select: no rule has the code CKPT9"),
        (
            "toy --select CKPT101",
            "only rules for training scripts are selected: adopt looks at models, and `check` at",
        ),
    ],
)
def test_bad_input_is_one_line_before_any_work(
    proofs: Proofs, capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    write_shape(Path("toy"), "old switch")
    Path("bare").mkdir()
    Path("full").mkdir()
    Path("full/mine").touch()
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ckpt_surgery: error: {said}")
    assert captured.err.count("\n") == 1
    assert not proofs.asked
