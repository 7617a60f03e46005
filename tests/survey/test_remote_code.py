"""Code that comes with a configuration is what runs, and one sentence says why it cannot be used."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.survey.build import build
from ckpt_surgery.survey.remote_code import load_remote
from ckpt_surgery.survey.resolve import resolve
from ckpt_surgery.survey.target import TargetError
from tests.survey.own_code import CONFIGURATION, modeling, write_folder

pytestmark = pytest.mark.both

HERE = version("transformers")


def problem(folder: Path) -> str:
    (target,) = resolve([str(folder)], trust_remote_code=True, variants=False)
    with pytest.raises(TargetError) as raised:
        build(target)
    return str(raised.value)


class TestWhatRuns:
    def test_the_class_and_its_configuration_come_from_the_folder(self, tmp_path: Path) -> None:
        model_class, config = load_remote(write_folder(tmp_path, hidden_size=96), "modeling_toy.ToyModel")
        assert model_class.__name__ == "ToyModel"
        assert type(config).__name__ == "ToyConfig"
        assert config.hidden_size == 96
        assert isinstance(config, model_class.config_class)

    def test_what_its_files_import_is_reached_as_far_as_it_is_needed(self, tmp_path: Path) -> None:
        files = {
            "modeling_toy": f"from .deeper import WIDTH\n{modeling()}",
            "deeper": "from .deepest import WIDTH",
            "deepest": "WIDTH = 3",
            "__init__": "raise RuntimeError('not to be run')",
        }
        model_class, _ = load_remote(write_folder(tmp_path, files), "modeling_toy.ToyModel")
        assert model_class.__name__ == "ToyModel"
        files = {"modeling_toy": f"{modeling()}\n\ndef chat():\n    import no_such_package\n"}
        assert load_remote(write_folder(tmp_path / "1", files), "modeling_toy.ToyModel")

    def test_two_folders_of_one_name_are_two_and_stay_as_they_are(self, tmp_path: Path) -> None:
        one = write_folder(tmp_path / "one" / "toy", hidden_size=32)
        two = write_folder(tmp_path / "two" / "toy", hidden_size=48)
        classes = [load_remote(folder, "modeling_toy.ToyModel")[0] for folder in (one, two)]
        assert classes[0] is not classes[1]
        folder = write_folder(tmp_path / "1")
        before = sorted(folder.iterdir())
        load_remote(folder, "modeling_toy.ToyModel")
        assert sorted(folder.iterdir()) == before

    def test_the_configuration_may_be_one_of_transformers(self, tmp_path: Path) -> None:
        files = {"modeling_toy": "from transformers import LlamaForCausalLM as Toy"}
        auto_map = {"AutoModelForCausalLM": "modeling_toy.Toy"}
        folder = write_folder(tmp_path, files, model_type="llama", architectures=["Toy"], auto_map=auto_map)
        assert type(load_remote(folder, "modeling_toy.Toy")[1]).__name__ == "LlamaConfig"


class TestWhyNot:
    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("import no_such_package", "modeling_toy.py, line 1, imports no_such_package, which is not installed"),
            ("import configuration_toy", "imports configuration_toy, which lies beside it: write `from .configur"),
            (
                "from transformers.utils import long_gone",
                f"modeling_toy.py, line 1, imports long_gone from transformers.utils, which transformers {HERE} does "
                "not have: install the release that the code was written for (config.json says 4.1.0)",
            ),
            (
                "import transformers.gone",
                f"imports transformers.gone, which transformers {HERE} does not have: install the release",
            ),
            (
                "raise OSError('no kernel')",
                "modeling_toy.py, line 1, raised OSError: no kernel; config.json is from transformers 4.1.0, "
                f"and {HERE} is installed",
            ),
        ],
    )
    def test_an_import_that_fails_is_named_with_its_place(self, tmp_path: Path, line: str, said: str) -> None:
        folder = write_folder(tmp_path, {"modeling_toy": f"{line}\n{modeling()}"}, transformers_version="4.1.0")
        assert said in problem(folder)

    def test_a_class_that_is_not_in_its_file_is_named(self, tmp_path: Path) -> None:
        assert "modeling_toy.py has no ToyModel" in problem(write_folder(tmp_path, {"modeling_toy": ""}))

    def test_code_that_fails_is_named_with_its_place_and_release(self, tmp_path: Path) -> None:
        source = modeling().replace("    def forward(self, input_ids", "    def forward(self, first, input_ids")
        source = source.replace("self.embedding(input_ids)", "self.embedding(input_ids, first.gone)")
        said = problem(write_folder(tmp_path, {"modeling_toy": source}, transformers_version="4.1.0"))
        assert said.startswith("no tiny ToyModel can be made: ")
        assert f"; config.json is from transformers 4.1.0, and {HERE} is installed" in said

    def test_the_place_is_the_line_of_the_folder(self, tmp_path: Path) -> None:
        source = modeling().replace(
            "        super().__init__(config)\n", "        super().__init__(config)\n        config.gone\n"
        )
        line = next(number for number, text in enumerate(source.splitlines(), 1) if "config.gone" in text)
        said = problem(write_folder(tmp_path, {"modeling_toy": source}, transformers_version=HERE))
        assert "construction raised AttributeError" in said
        assert said.endswith(f" (modeling_toy.py, line {line}: config.gone)")

    def test_a_configuration_that_is_refused_is_named(self, tmp_path: Path) -> None:
        source = CONFIGURATION.replace("        self.vocab", "        raise ValueError('odd')\n        self.vocab")
        assert "raised ValueError: odd" in problem(write_folder(tmp_path, {"configuration_toy": source}))
