"""The findings in folders of each shape, and a diff that tools can apply."""

from __future__ import annotations

import codecs
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ckpt_surgery.adopt.source import AdoptError, ModelFolder, SourceResult, write_changes
from ckpt_surgery.static import apply as static_apply
from tests.survey.own_code import write_folder
from tests.zoo.own_code_shapes import SHAPES, modeling, write_shape

CODES: Mapping[str, set[str]] = {
    "old switch": {"CKPT002", "CKPT003"},
    "module dict": {"CKPT001", "CKPT003"},
    "closures": {"CKPT002", "CKPT012"},
    "functions": {"CKPT002", "CKPT012"},
    "bound functions": {"CKPT002"},
    "by hand": {"CKPT012"},
    "name of transformers": {"CKPT001", "CKPT003"},
    "healthy": set(),
}
LEFT = ("bound functions", "by hand")
REPAIRED = [shape for shape in SHAPES if shape not in (*LEFT, "healthy")]
APPLIERS = {"git": ["git", "apply"], "patch": ["patch", "-p1", "--quiet", "-i"]}
SCRIPT = """
import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(make(), device_ids=[0])
model.module.gradient_checkpointing_enable({"use_reentrant": True})
model(batch).loss.backward()
"""


def examined(folder: Path, unsafe: bool = False) -> SourceResult:
    return SourceResult.of(ModelFolder.read(folder), unsafe=unsafe, cache=False, jobs=1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def apply_diff(program: str, diff: bytes, folder: Path, place: Path) -> None:
    file = place / "repair.diff"
    file.write_bytes(diff)
    subprocess.run([*APPLIERS[program], file], cwd=folder, check=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_found_in_each_shape(tmp_path: Path, shape: str) -> None:
    source = examined(write_shape(tmp_path, shape))
    assert {finding.code for finding in source.faults} == CODES[shape]
    assert bool(source.patches) == (shape in REPAIRED)
    assert bool(source.left) == (shape in LEFT)


def test_a_function_over_several_modules_is_repaired_on_request_alone(tmp_path: Path) -> None:
    source = examined(write_shape(tmp_path, "bound functions"), unsafe=True)
    assert bool(source.patches)
    assert source.left == ()


@pytest.mark.parametrize("program", APPLIERS)
@pytest.mark.parametrize("shape", REPAIRED)
def test_the_diff_applied_is_what_is_written(tmp_path: Path, shape: str, program: str) -> None:
    folder, twin = (write_shape(tmp_path / name, shape) for name in ("one", "two"))
    source = examined(folder)
    apply_diff(program, source.diff, twin, tmp_path)
    write_changes(source.repair.changes)
    assert contents(twin) == contents(folder)
    assert examined(folder).faults == ()


@pytest.mark.parametrize("program", APPLIERS)
@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (modeling("module dict"), "utf-8-sig"),
        (f"# -*- coding: latin-1 -*-\n# caf\xe9\n{modeling('module dict')}", "latin-1"),
        (modeling("module dict").rstrip("\n"), "utf-8"),
    ],
    ids=["a byte order mark", "latin-1", "no line feed at the end"],
)
def test_the_diff_is_of_the_bytes_on_disk(tmp_path: Path, text: str, encoding: str, program: str) -> None:
    folder = write_folder(tmp_path / "toy")
    (folder / "modeling_toy.py").write_bytes(text.encode(encoding))
    source = examined(folder)
    before = contents(folder)
    apply_diff(program, source.diff, folder, tmp_path)
    applied = contents(folder)
    assert applied != before
    assert applied["modeling_toy.py"].startswith(codecs.BOM_UTF8) == (encoding == "utf-8-sig")
    (folder / "modeling_toy.py").write_bytes(before["modeling_toy.py"])
    write_changes(source.repair.changes)
    assert contents(folder) == applied


def test_files_in_subfolders_have_their_path_in_the_diff(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "toy", {"modeling_toy": "from .deeper.modeling_real import ToyModel"})
    (folder / "deeper").mkdir()
    (folder / "deeper/modeling_real.py").write_text(modeling("module dict"))
    source = examined(folder)
    assert [*source.patches] == ["deeper/modeling_real.py"]
    apply_diff("git", source.diff, folder, tmp_path)
    assert examined(folder).faults == ()


def test_training_scripts_beside_the_model_are_left_out(tmp_path: Path) -> None:
    folder = write_shape(tmp_path, "healthy")
    (folder / "train.py").write_text(SCRIPT)
    codes = {finding.code for finding in static_apply.apply(folder, write=False, cache=False).findings}
    assert "CKPT104" in codes
    assert examined(folder).repair.findings == ()
    with pytest.raises(AdoptError, match="only rules for training scripts are selected"):
        SourceResult.of(ModelFolder.read(folder), select=["CKPT104"])


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shape(tmp_path, "module dict")
    original = static_apply.apply

    def changing(*arguments: object, **options: object) -> object:
        result = original(*arguments, **options)  # type: ignore[arg-type]
        (folder / "modeling_toy.py").write_text("x = 1\n")
        return result

    monkeypatch.setattr("ckpt_surgery.adopt.source.apply", changing)
    with pytest.raises(AdoptError, match="changed while it was read: run this again"):
        examined(folder)
