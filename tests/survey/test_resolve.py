"""The targets of MODEL arguments, and refusals of arguments that name nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery.survey.resolve import resolve
from ckpt_surgery.survey.target import SurveyTarget, TargetError, TargetKind

CONFIG = {"model_type": "gpt_bigcode", "n_layer": 40, "architectures": ["GPTBigCodeForCausalLM"]}
AUTO_MAP = {"AutoConfig": "configuration_toy.ToyConfig", "AutoModelForCausalLM": "modeling_toy.ToyForCausalLM"}


class Entry:
    """A model class of a made-up transformers."""

    def __init__(self, name: str, *types: str) -> None:
        self.name, self.model_type, self.types = name, types[0], types


@pytest.fixture
def small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "GPTBigCodeModel": "gpt_bigcode",
        "GPTBigCodeForCausalLM": "gpt_bigcode",
        "XLMRobertaModel": "xlm-roberta",
        "BertModel": "bert,twin-of_bert",
    }
    catalogue = {name: Entry(name, *types.split(",")) for name, types in names.items()}
    for module in ("configurations", "model_names", "resolve"):
        monkeypatch.setattr(f"ckpt_surgery.survey.{module}.catalogue", lambda: catalogue)


def classes(*names: str, **options: Any) -> list[str]:
    return [target.model for target in resolve(names, variants=False, **options)]


def folder(place: Path, config: Mapping[str, Any] | str) -> str:
    text = config if isinstance(config, str) else json.dumps(config)
    (place / "config.json").write_text(text, encoding="utf-8")
    return str(place)


def refusal(*names: str, **options: Any) -> str:
    with pytest.raises(TargetError) as caught:
        classes(*names, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.usefixtures("small_catalogue")
class TestNames:
    def test_a_model_type_is_all_its_classes(self) -> None:
        assert classes("gpt_bigcode") == ["GPTBigCodeForCausalLM", "GPTBigCodeModel"]
        assert classes("gpt-bigcode") == classes("gpt_bigcode")
        assert classes("xlm_roberta") == classes("xlm-roberta") == ["XLMRobertaModel"]

    def test_a_model_type_whose_classes_are_listed_under_another_is_found(self) -> None:
        assert classes("twin_of_bert") == classes("bert") == ["BertModel"]
        assert "did you mean twin-of_bert" in refusal("twin_of_brt")

    def test_a_class_of_several_types_is_listed_under_the_requested_one(self) -> None:
        assert [target.model_type for target in resolve(["twin_of_bert"], variants=False)] == ["twin-of_bert"]
        assert [target.model_type for target in resolve(["BertModel"], variants=False)] == ["bert"]
        everything = resolve(["twin_of_bert"], everything=True, variants=False)
        assert [target.model_type for target in everything if target.model == "BertModel"] == ["twin-of_bert"]

    def test_a_class_or_factory_is_itself_and_everything_each_class_once(self) -> None:
        assert resolve(["BertModel"], variants=False) == [
            SurveyTarget("BertModel", "BertModel", TargetKind.CLASS, "bert")
        ]
        everything = ["BertModel", "GPTBigCodeForCausalLM", "GPTBigCodeModel", "XLMRobertaModel"]
        assert classes(everything=True) == classes("bert", "GPTBigCodeModel", everything=True) == everything
        assert classes("xlm-roberta", "bert") == classes("bert", "xlm-roberta", "bert")
        (target,) = resolve(["package.module:Maker.make"])
        assert (target.kind, target.argument, target.model) == (
            "factory",
            "package.module:Maker.make",
            "package.module:Maker.make",
        )

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("gpt_bigcod", "no model type and no model class named 'gpt_bigcod': did you mean gpt_bigcode"),
            ("GPTBigcodeForCausalLm", "did you mean GPTBigCodeForCausalLM"),
            ("xyz", "'xyz': give a model type such as gpt_bigcode, or a class"),
            (
                "bigcode/santacoder",
                "not a folder here, and nothing is ever downloaded: give a folder with the model's",
            ),
            ("module:", "'module:' is not a factory: write package.module:function or FILE.py:function"),
            ("no/such.py:make", "there is no file no/such.py"),
            ("no.json", "no.json: cannot be read: No such file or directory"),
            ("", "no model type and no model class named ''"),
            ("BarkModel", "BarkModel cannot be verified: it is a model without a forward"),
        ],
    )
    def test_a_name_that_means_nothing_is_reported(self, name: str, said: str) -> None:
        assert said in refusal("bert", name)

    def test_a_file_that_is_no_configuration_is_said_to_be_one(self, tmp_path: Path) -> None:
        (tmp_path / "model.py").write_text("", encoding="utf-8")
        assert "is a file but not a configuration: give a config.json" in refusal(str(tmp_path / "model.py"))


@pytest.mark.usefixtures("small_catalogue")
class TestConfigurations:
    def test_the_architectures_choose_the_class(self, tmp_path: Path) -> None:
        name = folder(tmp_path, CONFIG)
        file = str(tmp_path / "config.json")
        expected = SurveyTarget(name, "GPTBigCodeForCausalLM", TargetKind.CONFIG, "gpt_bigcode", source=file)
        assert resolve([name], variants=False) == [expected]
        assert classes(file) == ["GPTBigCodeForCausalLM"]

    def test_without_architectures_it_is_every_class_of_the_type(self, tmp_path: Path) -> None:
        assert classes(folder(tmp_path, {"model_type": "gpt_bigcode"})) == ["GPTBigCodeForCausalLM", "GPTBigCodeModel"]

    def test_a_folder_named_like_a_model_type_does_not_hide_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("bert").mkdir()
        assert classes("bert") == ["BertModel"]
        assert "config.json: cannot be read" in refusal("./bert")

    @pytest.mark.parametrize(
        ("config", "said"),
        [
            ("{", "config.json: is not JSON: Expecting property name"),
            ("[]", "config.json: is not a configuration: it must hold an object with a model_type"),
            ({}, "no model type '': `model_type` or `architectures` must name one it has"),
            ({"model_type": "gpt_bigcodes"}, "no model type 'gpt_bigcodes': did you mean gpt_bigcode"),
            ({"architectures": "BertModel"}, '`architectures` is "BertModel": it must be a list of class names'),
            ({"architectures": [1]}, "`architectures` is [1]: it must be a list of class names"),
            ({"architectures": ["Gone"]}, "no class Gone, which `architectures` names: correct the name, or install"),
        ],
    )
    def test_one_that_is_of_no_use_is_refused(
        self, tmp_path: Path, config: Mapping[str, Any] | str, said: str
    ) -> None:
        assert said in refusal(folder(tmp_path, config))

    def test_code_that_comes_with_it_is_run_on_request_only(self, tmp_path: Path) -> None:
        name = folder(tmp_path, {"model_type": "toy", "architectures": ["ToyForCausalLM"], "auto_map": AUTO_MAP})
        assert "comes with its own code" in refusal(name)
        assert "only --trust-remote-code runs it" in refusal(name)
        self.code(tmp_path)
        (target,) = resolve([name], trust_remote_code=True)
        assert (target.kind, target.model) == ("remote", "ToyForCausalLM")
        assert target.source == f"{tmp_path}::modeling_toy.ToyForCausalLM"

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            (
                {"AutoModelForCausalLM": "modeling_gone.Toy"},
                "modeling_gone.Toy, but there is no modeling_gone.py beside",
            ),
            ({"AutoConfig": "gone.ToyConfig"}, "gone.ToyConfig, but there is no gone.py beside it: add the file, or"),
            ({"AutoConfig": "ToyConfig"}, "ToyConfig, but that is not a `module.Class`: add the file, or correct the"),
            ({"AutoConfig": "a/b--c.D"}, "a/b--c.D, code of another repository, and nothing is ever downloaded"),
        ],
    )
    def test_code_that_is_not_there_is_said_to_be_missing(
        self, tmp_path: Path, changed: Mapping[str, str], said: str
    ) -> None:
        self.code(tmp_path)
        name = folder(tmp_path, {"model_type": "toy", "auto_map": {**AUTO_MAP, **changed}})
        assert said in refusal(name, trust_remote_code=True)

    def code(self, place: Path) -> None:
        for module in ("configuration_toy", "modeling_toy"):
            (place / f"{module}.py").touch()

    def test_trusted_code_of_a_class_goes_before_that_of_transformers(self, tmp_path: Path) -> None:
        self.code(tmp_path)
        own = {**AUTO_MAP, "AutoModelForCausalLM": "modeling_toy.GPTBigCodeForCausalLM"}
        name = folder(tmp_path, {**CONFIG, "auto_map": own})
        (target,) = resolve([name], trust_remote_code=True, variants=False)
        assert (target.kind, target.model) == ("remote", "GPTBigCodeForCausalLM")
        assert target.code_file == str(tmp_path / "modeling_toy.py")
        (target,) = resolve([name], variants=False)
        assert (target.kind, target.code_file) == ("config", "")

    def test_trust_changes_nothing_where_no_model_class_comes_with_it(self, tmp_path: Path) -> None:
        name = folder(tmp_path, {**CONFIG, "auto_map": {"AutoTokenizer": ["tokenization_toy.Toy", None]}})
        (target,) = resolve([name], trust_remote_code=True, variants=False)
        assert target.kind == "config"
        (target,) = resolve([folder(tmp_path, {**CONFIG, "auto_map": AUTO_MAP})], variants=False)
        assert target.kind == "config"
        name = folder(tmp_path, {"model_type": "toy", "auto_map": {"AutoConfig": "a.B"}})
        assert "names no model class" in refusal(name, trust_remote_code=True)


@pytest.mark.both
class TestTheInstalledTransformers:
    def test_a_mixture_of_experts_is_also_run_with_its_router_loss(self) -> None:
        targets = resolve(["mixtral"])
        assert [target.label for target in targets if target.options] == ["MixtralForCausalLM (router loss)"]
        assert [target.options for target in targets if target.variant] == [(("output_router_logits", True),)]
        assert {"MixtralModel", "MixtralForCausalLM"} <= {target.label for target in targets}

    def test_an_option_that_the_forward_does_not_use_makes_no_variant(self) -> None:
        assert [target.label for target in resolve(["Llama4ForCausalLM"])] == ["Llama4ForCausalLM"]

    def test_the_nearest_of_all_its_names_are_offered(self) -> None:
        assert "did you mean" in refusal("gpt_bigcod")
        assert "gpt_bigcode" in refusal("gpt_bigcod")

    def test_each_of_its_classes_is_a_job(self) -> None:
        targets = resolve([], everything=True, variants=False)
        assert len(targets) == len({target.model for target in targets}) > 700
        assert targets == sorted(targets, key=lambda target: (target.model_type, target.model))
