"""Which folders can be adopted; any other is refused in one sentence that says what to do. Nothing is imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_surgery.adopt.source import ModelFolder
from ckpt_surgery.errors import CkptSurgeryError
from tests.survey.own_code import write_folder
from tests.zoo.own_code_shapes import write_shape


def problem(path: Path) -> str:
    with pytest.raises(CkptSurgeryError) as raised:
        ModelFolder.read(path)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_a_folder_names_its_classes_and_what_loads_them(tmp_path: Path) -> None:
    folder = ModelFolder.read(write_shape(tmp_path / "toy", "name of transformers"))
    assert (folder.name, folder.model_type) == ("toy", "toy_of_mine")
    assert folder.classes == {"GPT2Model": "modeling_toy.GPT2Model"}
    assert folder.auto_classes == {"GPT2Model": "AutoModel"}


def test_a_folder_that_is_the_working_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_shape(tmp_path / "toy", "healthy"))
    folder = ModelFolder.read(Path())
    assert folder.name == "toy"
    assert folder.relative("./deeper/file.py") == "deeper/file.py"


def test_the_code_is_not_imported(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"modeling_toy": "raise RuntimeError('imported')"})
    assert ModelFolder.read(folder).classes == {"ToyModel": "modeling_toy.ToyModel"}


def test_what_is_not_a_model_s_folder_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "toy")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert problem(tmp_path / "gone").endswith("gone does not exist: check the path")
    file = folder / "config.json"
    assert problem(file) == f"{file} is a file: name the folder that it is in"
    advice = f"adopt takes a model's folder; `ckpt_surgery check {empty}` looks at any code"
    assert problem(empty) == f"{empty} has no config.json: {advice}"
    for code in folder.glob("*.py"):
        code.unlink()
    assert problem(folder) == f"{folder} holds no Python file: there is no code to adopt"


@pytest.mark.parametrize("auto_map", [None, {}, "modeling_toy.ToyModel"])
def test_a_configuration_that_names_no_code(tmp_path: Path, auto_map: object) -> None:
    said = problem(write_folder(tmp_path, auto_map=auto_map))
    assert said.startswith(f"{tmp_path / 'config.json'} has no `auto_map`, which names a model's own code: ")
    assert said.endswith(f"`ckpt_surgery check {tmp_path}` looks at any code")


@pytest.mark.parametrize(
    ("auto_map", "said"),
    [
        (
            {"AutoConfig": "configuration_toy.ToyConfig"},
            "`auto_map` names no model class: it needs an AutoModel entry",
        ),
        ({"AutoModel": "modeling_gone.ToyModel"}, "but there is no modeling_gone.py beside it: add the file"),
        ({"AutoModel": "other/toy--modeling_toy.ToyModel"}, "code of another repository, and nothing is ever downlo"),
    ],
)
def test_code_that_is_not_in_the_folder(tmp_path: Path, auto_map: object, said: str) -> None:
    assert said in problem(write_folder(tmp_path, auto_map=auto_map))


@pytest.mark.parametrize(("text", "said"), [("{", "is not JSON: "), (json.dumps([1]), "is not a configuration: ")])
def test_a_broken_configuration(tmp_path: Path, text: str, said: str) -> None:
    (write_folder(tmp_path) / "config.json").write_text(text)
    assert said in problem(tmp_path)
