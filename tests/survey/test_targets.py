"""What a MODEL argument means: the jobs it stands for, and what is said of one that stands for nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_surgery.survey import targets
from ckpt_surgery.survey.targets import (
    SurveyTarget,
    TargetError,
    checked_timeout,
    parse_shard,
    part_of,
    resolve,
    target_of,
)

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
    monkeypatch.setattr(targets, "_catalogue", lambda: catalogue)


def classes(*names: str, **options: Any) -> list[str]:
    return [job.model for job in resolve(names, variants=False, **options)]


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

    def test_a_model_type_whose_classes_stand_under_another_is_those(self) -> None:
        assert classes("twin_of_bert") == classes("bert") == ["BertModel"]
        assert "did you mean twin-of_bert" in refusal("twin_of_brt")

    def test_a_class_is_itself(self) -> None:
        assert resolve(["BertModel"], variants=False) == [SurveyTarget("BertModel", "BertModel", "class", "bert")]

    def test_everything_is_every_class_once(self) -> None:
        everything = ["BertModel", "GPTBigCodeForCausalLM", "GPTBigCodeModel", "XLMRobertaModel"]
        assert classes(everything=True) == classes("bert", "GPTBigCodeModel", everything=True) == everything

    def test_the_order_does_not_depend_on_the_arguments(self) -> None:
        assert classes("xlm-roberta", "bert") == classes("bert", "xlm-roberta", "bert")

    def test_a_factory_is_taken_at_its_word(self) -> None:
        (job,) = resolve(["package.module:Maker.make"])
        assert (job.kind, job.argument, job.model) == (
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
            ("bigcode/santacoder", "no folder here, and nothing is ever downloaded: give a folder with the model's"),
            ("module:", "'module:' is no factory: write package.module:function"),
            ("no.json", "no.json: cannot be read: No such file or directory"),
            ("", "no model type and no model class named ''"),
        ],
    )
    def test_a_name_that_means_nothing_is_said_to(self, name: str, said: str) -> None:
        assert said in refusal("bert", name)

    def test_a_file_that_is_no_configuration_is_said_to_be_one(self, tmp_path: Path) -> None:
        (tmp_path / "model.py").write_text("", encoding="utf-8")
        assert "is a file but no configuration: give a config.json" in refusal(str(tmp_path / "model.py"))


@pytest.mark.usefixtures("small_catalogue")
class TestConfigurations:
    def test_the_architectures_choose_the_class(self, tmp_path: Path) -> None:
        name = folder(tmp_path, CONFIG)
        file = str(tmp_path / "config.json")
        expected = SurveyTarget(name, "GPTBigCodeForCausalLM", "config", "gpt_bigcode", source=file)
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
            ("{", "config.json: is no JSON: Expecting property name"),
            ("[]", "config.json: is no configuration: it must hold an object with a model_type"),
            ({}, "no model type '': `model_type` or `architectures` must name one it has"),
            ({"model_type": "gpt_bigcodes"}, "no model type 'gpt_bigcodes': did you mean gpt_bigcode"),
            ({"architectures": "BertModel"}, '`architectures` is "BertModel": it must be a list of class names'),
            ({"architectures": [1]}, "`architectures` is [1]: it must be a list of class names"),
            ({"architectures": ["Gone"]}, "no class Gone, which `architectures` names: correct the name, or install"),
        ],
    )
    def test_one_that_is_of_no_use_is_said_to_be(
        self, tmp_path: Path, config: Mapping[str, Any] | str, said: str
    ) -> None:
        assert said in refusal(folder(tmp_path, config))

    def test_code_that_comes_with_it_is_run_on_request_only(self, tmp_path: Path) -> None:
        name = folder(tmp_path, {"model_type": "toy", "architectures": ["ToyForCausalLM"], "auto_map": AUTO_MAP})
        assert "holds code of its own" in refusal(name)
        assert "only `ckpt_surgery verify --trust-remote-code` runs it then" in refusal(name)
        self.code(tmp_path)
        (job,) = resolve([name], trust_remote_code=True)
        assert (job.kind, job.model) == ("remote", "ToyForCausalLM")
        assert job.source == f"{tmp_path}::modeling_toy.ToyForCausalLM"

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            (
                {"AutoModelForCausalLM": "modeling_gone.Toy"},
                "modeling_gone.Toy, but there is no modeling_gone.py beside",
            ),
            ({"AutoConfig": "gone.ToyConfig"}, "gone.ToyConfig, but there is no gone.py beside it: add the file, or"),
            ({"AutoConfig": "ToyConfig"}, "ToyConfig, but that is no `module.Class`: add the file, or correct the"),
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

    def test_the_code_of_a_class_that_transformers_has_is_not_needed(self, tmp_path: Path) -> None:
        (job,) = resolve([folder(tmp_path, {**CONFIG, "auto_map": AUTO_MAP})], variants=False)
        assert job.kind == "config"

    def test_an_auto_map_without_models_is_of_no_use(self, tmp_path: Path) -> None:
        name = folder(tmp_path, {"model_type": "toy", "auto_map": {"AutoConfig": "a.B"}})
        assert "names no model class" in refusal(name, trust_remote_code=True)


class TestShards:
    @given(st.integers(0, 300), st.integers(1, 40))
    def test_are_disjoint_complete_and_equally_long(self, count: int, shards: int) -> None:
        jobs = [SurveyTarget(str(number), str(number)) for number in range(count)]
        parts = [part_of(jobs, (index, shards)) for index in range(1, shards + 1)]
        assert [job for part in parts for job in part] == jobs
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    def test_are_written_as_part_of_how_many(self) -> None:
        assert parse_shard("2/4") == (2, 4)
        assert parse_shard(" 1/1 ") == (1, 1)

    @pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "a/b", "-1/4", "1/0", "1/2/3", "1.5/2", "²/3"])
    def test_that_make_no_sense_are_said_to(self, text: str) -> None:
        with pytest.raises(TargetError, match="is no shard: write i/n with i from 1 to n, such as 2/4"):
            parse_shard(text)


class TestTimeLimits:
    @pytest.mark.parametrize("seconds", [0.1, 30.0, 86400.0])
    def test_are_taken_as_they_are(self, seconds: float) -> None:
        assert checked_timeout(seconds) == seconds

    @pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e300"])
    def test_that_no_clock_can_wait_for_are_said_to_be_none(self, text: str) -> None:
        with pytest.raises(TargetError, match="is no time limit: give seconds"):
            checked_timeout(float(text))


@given(
    st.builds(
        SurveyTarget,
        *[st.text()] * 2,
        st.sampled_from(["class", "config", "remote", "factory"]),
        *[st.text()] * 3,
        st.lists(st.tuples(st.text(), st.booleans())).map(tuple),
    )
)
def test_a_job_survives_json(job: SurveyTarget) -> None:
    assert target_of(json.loads(json.dumps(job.to_dict()))) == job


@pytest.mark.both
class TestTheInstalledTransformers:
    def test_a_mixture_of_experts_is_also_looked_at_with_the_loss_of_its_router(self) -> None:
        jobs = resolve(["mixtral"])
        assert [job.label for job in jobs if job.options] == ["MixtralForCausalLM (router loss)"]
        assert [job.options for job in jobs if job.variant] == [(("output_router_logits", True),)]
        assert {"MixtralModel", "MixtralForCausalLM"} <= {job.label for job in jobs}

    def test_an_option_that_the_forward_does_not_use_makes_no_variant(self) -> None:
        assert [job.label for job in resolve(["Llama4ForCausalLM"])] == ["Llama4ForCausalLM"]

    def test_the_nearest_of_all_its_names_are_offered(self) -> None:
        assert "did you mean" in refusal("gpt_bigcod")
        assert "gpt_bigcode" in refusal("gpt_bigcod")

    def test_each_of_its_classes_is_a_job(self) -> None:
        jobs = resolve([], everything=True, variants=False)
        assert len(jobs) == len({job.model for job in jobs}) > 700
        assert jobs == sorted(jobs, key=lambda job: (job.model_type, job.model))
