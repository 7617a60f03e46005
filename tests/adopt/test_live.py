"""`adopt` from beginning to end on folders of each shape: a later measurement agrees with its report."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.adopt import source as adopt_source
from ckpt_surgery.cli.main import main
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.results import ApplyResult, FileChange
from ckpt_surgery.survey import survey
from ckpt_surgery.survey.resolve import resolve_in
from ckpt_surgery.survey.worker_pool import WorkerPool
from tests.survey.own_code import write_folder
from tests.zoo.own_code_shapes import class_name, modeling, write_shape

pytestmark = [pytest.mark.torch, pytest.mark.slow]

REPAIRED: Mapping[str, set[str]] = {
    "old switch": {"set"},
    "module dict": {"recompute", "cost"},
    "closures": {"recompute", "values"},
    "functions": {"values"},
    "name of transformers": {"recompute", "cost"},
}
"""The levels that fail before the repair in non-reentrant mode."""


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerPool]:
    with WorkerPool() as pool:
        yield pool


@pytest.fixture
def pool(shared: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    """Share one fork server between the commands: its imports take seconds. The working folder is empty."""
    monkeypatch.setattr("ckpt_surgery.survey.worker_pool.WorkerPool", lambda: nullcontext(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return shared


def adopted(*options: str) -> tuple[int, dict[str, Any]]:
    """Run `adopt toy` with these options; return its exit code and adopt.json."""
    code = main(["adopt", "toy", "--trust-remote-code", "--timeout", "100", "--output", "out", *options])
    document: dict[str, Any] = json.loads(Path("out/adopt.json").read_text())
    return code, document


def statuses(pool: WorkerPool, folder: Path) -> list[str]:
    """Read the statuses of the classes of a folder from `verify`."""
    targets = resolve_in(pool, names=[str(folder.resolve())], trust_remote_code=True)
    return [report.status for report in survey(targets, timeout=100, pool=pool)]


def failed(report: dict[str, Any], mode: int = 0) -> set[str]:
    return {fault["level"] for fault in report["modes"][mode]["faults"]}


@pytest.mark.both
@pytest.mark.parametrize("shape", REPAIRED)
def test_a_fault_is_measured_repaired_written_and_gone(
    pool: WorkerPool, capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    folder, twin = write_shape(Path("toy"), shape), write_shape(Path("twin"), shape)
    code, document = adopted("--write")
    assert (code, document["decision"], document["clean"]) == (0, "written", True)
    assert document["classes"] == {class_name(shape): f"modeling_toy.{class_name(shape)}"}
    (proof,) = document["proofs"]
    assert (proof["verdict"], proof["before"]["status"], proof["after"]["status"]) == ("repaired", "failed", "ok")
    assert failed(proof["before"]) == REPAIRED[shape]
    assert proof["after"]["source"] == "modeling_toy.py"
    assert document["unmeasured"] == []
    subprocess.run(["git", "apply", Path("out/repair.diff").resolve()], cwd=twin, check=True)
    assert (twin / "modeling_toy.py").read_bytes() == (folder / "modeling_toy.py").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in twin.iterdir())
    capsys.readouterr()
    assert main(["adopt", "toy"]) == 0
    assert "1 file checked: no faults." in capsys.readouterr().out
    assert statuses(pool, folder) == ["ok"]


@pytest.mark.both
def test_a_healthy_folder_is_proved_and_left_as_it_is(pool: WorkerPool) -> None:
    folder = write_shape(Path("toy"), "healthy")
    before = (folder / "modeling_toy.py").read_bytes()
    code, document = adopted("--write")
    assert (code, document["decision"], document["clean"]) == (0, "nothing to repair", True)
    assert [proof["verdict"] for proof in document["proofs"]] == ["ok"]
    assert (folder / "modeling_toy.py").read_bytes() == before
    assert statuses(pool, folder) == ["ok"]


@pytest.mark.both
def test_a_loop_that_a_person_has_to_repair_is_not_taken_for_healthy(pool: WorkerPool) -> None:
    folder = write_shape(Path("toy"), "by hand")
    code, document = adopted("--write")
    assert (code, document["decision"], document["clean"]) == (1, "nothing to repair", False)
    (proof,) = document["proofs"]
    assert (proof["verdict"], proof["after"]) == ("failed", None)
    assert [failed(proof["before"], mode) for mode in (0, 1)] == [{"values"}, {"values"}]
    assert statuses(pool, folder) == ["failed"]
    assert "does not work correctly in `ToyModel`" in Path("out/model_card.md").read_text()


@pytest.mark.both
def test_a_repair_of_what_was_right_that_costs_memory_is_refused(
    pool: WorkerPool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_shape(Path("toy"), "bound functions")
    before = (folder / "modeling_toy.py").read_bytes()
    code, document = adopted("--write", "--unsafe")
    assert (code, document["decision"]) == (1, "worse")
    assert (folder / "modeling_toy.py").read_bytes() == before
    assert "The repair is refused: with it, ToyModel is worse in cost" in capsys.readouterr().out
    assert "**Do not open this as a pull request**" in Path("out/pull_request.md").read_text()


def test_a_repair_that_breaks_a_mode_leaves_the_folder_alone(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def harmful(*arguments: Any, **options: Any) -> ApplyResult:
        result = apply(*arguments, **options)
        (file,) = folder.glob("modeling_*.py")
        text = file.read_text()
        broken = text.replace(
            "layer(hidden_states, position_bias)", "layer(hidden_states, position_bias=position_bias)"
        )
        return replace(result, changes=(FileChange(str(file), text, broken, ("CKPT003",)),))

    monkeypatch.setattr(adopt_source, "apply", harmful)
    folder = write_shape(Path("toy"), "healthy")
    before = (folder / "modeling_toy.py").read_bytes()
    code, document = adopted("--write")
    assert (code, document["decision"]) == (1, "worse")
    assert (folder / "modeling_toy.py").read_bytes() == before
    said = " ".join(capsys.readouterr().out.split())
    assert "The repair is refused: with it, ToyModel is worse in run (reentrant). toy" in said
    assert said.endswith(" is as it was.")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"modeling_toy": "import no_such_package\n" + modeling("old switch")},
            "imports no_such_package, which is not",
        ),
        (
            {"modeling_toy": modeling("old switch").replace("self.embedding(input_ids)", "input_ids.no_such")},
            "no tiny ToyModel can be made: forward raised AttributeError",
        ),
    ],
    ids=[
        "an import that fails",
        "a forward that fails",
    ],
)
def test_code_that_cannot_be_run_is_one_sentence(
    pool: WorkerPool, capsys: pytest.CaptureFixture[str], files: dict[str, str], said: str
) -> None:
    folder = write_folder(Path("toy"), {"modeling_toy": modeling("old switch"), **files}, vocab_size=64)
    before = (folder / "modeling_toy.py").read_bytes()
    code, document = adopted("--write")
    assert (code, document["decision"]) == (2, "not proved")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ckpt_surgery: error: toy: ")
    assert said in line
    assert (folder / "modeling_toy.py").read_bytes() == before


def test_files_beside_the_code_are_there_for_the_repaired_copy_too(pool: WorkerPool) -> None:
    read = "from pathlib import Path\nSCALE = float(Path(__file__).with_name('scale.txt').read_text())\n"
    read += "assert Path(__file__).with_name('weights.bin').stat().st_size > 2**22\nfrom .parts.more import MORE\n"
    folder = write_folder(Path("toy"), {"modeling_toy": read + modeling("module dict")}, vocab_size=64)
    (folder / "scale.txt").write_text("2.0")
    (folder / "weights.bin").write_bytes(bytes(2**23))
    (folder / "parts").mkdir()
    (folder / "parts/more.py").write_text("MORE = 1\n")
    (folder / "parts/again").symlink_to("..", target_is_directory=True)
    code, document = adopted()
    assert (code, document["decision"]) == (1, "proved")


def test_a_module_that_registers_its_classes_can_be_measured_twice(pool: WorkerPool) -> None:
    register = "\nfrom transformers import AutoConfig\nAutoConfig.register('toy_of_mine', ToyConfig)\n"
    write_folder(Path("toy"), {"modeling_toy": modeling("module dict") + register}, vocab_size=64)
    _, document = adopted()
    assert document["decision"] == "proved"


def test_a_repaired_class_that_no_measured_model_has_is_named(
    pool: WorkerPool, capsys: pytest.CaptureFixture[str]
) -> None:
    code = modeling("module dict")
    other = code[code.index("class ToyAttention") :].replace("Toy", "Vision").replace("VisionConfig", "ToyConfig")
    write_folder(Path("toy"), {"modeling_toy": f"{code}\n\n{other}"}, vocab_size=64)
    _, document = adopted()
    assert {finding["class_name"] for finding in document["unmeasured"]} == {"VisionLayer", "VisionModel"}
    said = " ".join(capsys.readouterr().out.split())
    assert "because no measured model has it: VisionLayer and VisionModel." in said
