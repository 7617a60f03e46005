"""A repair of several files is written as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.adopt import source
from ckpt_surgery.adopt.source import AdoptError, ModelFolder, SourceResult, write_changes
from ckpt_surgery.static.results import FileChange
from ckpt_surgery.static.write import write_atomically
from tests.survey.own_code import write_folder
from tests.zoo.own_code_shapes import modeling


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = modeling("module dict")
    return write_folder(tmp_path, {"modeling_toy": code, "modeling_vision": code.replace("Toy", "Vision")})


def changes(folder: Path) -> tuple[FileChange, ...]:
    found = SourceResult.of(ModelFolder.read(folder), cache=False, jobs=1)
    assert [*found.patches] == ["modeling_toy.py", "modeling_vision.py"]
    return found.repair.changes


def texts(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("*"))]


@pytest.mark.parametrize("spoil", ["changed", "read-only", "gone"])
def test_one_file_that_cannot_be_written_leaves_all_as_they_were(folder: Path, spoil: str) -> None:
    wanted = changes(folder)
    file = folder / "modeling_vision.py"
    match spoil:
        case "changed":
            file.write_text("x = 1\n")
        case "read-only":
            file.chmod(0o444)
        case "gone":
            file.unlink()
    before = texts(folder)
    with pytest.raises(AdoptError, match=r"nothing was written: .*modeling_vision.py: left as it was: "):
        write_changes(wanted)
    assert texts(folder) == before


def test_an_interrupt_between_two_files_leaves_all_as_they_were(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, before = changes(folder), texts(folder)
    original = write_atomically

    def interrupted(path: str, *texts: str, **options: object) -> object:
        if path.endswith("vision.py"):
            raise KeyboardInterrupt
        return original(path, *texts, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(source, "write_atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_changes(wanted)
    assert texts(folder) == before
