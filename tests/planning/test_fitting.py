"""Configuration defaults that do not fit together: which fields are changed, and that it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning import target as targets
from ckpt_surgery.planning.target import fit_parts
from tests.planning.test_target import config, model_of

pytestmark = pytest.mark.torch


def test_features_get_the_width_of_the_text() -> None:
    from transformers import GlmOcrConfig

    glm = GlmOcrConfig()
    changed = fit_parts(glm)
    assert glm.vision_config.out_hidden_size == glm.text_config.hidden_size == 1024
    assert "vision_config.out_hidden_size 1536 -> 1024" in changed
    assert fit_parts(glm) == ()


def test_a_dictionary_changes_the_fields_that_it_names() -> None:
    from transformers import AyaVisionConfig

    aya = AyaVisionConfig()
    layers = aya.vision_config.num_hidden_layers
    assert fit_parts(aya) == ("vision_config.num_attention_heads 14 -> 16", "vision_config.image_size 384 -> 364")
    assert aya.vision_config.num_hidden_layers == layers


def test_parts_that_fit_are_left_alone() -> None:
    from transformers import LlamaConfig, LlavaConfig

    assert fit_parts(LlamaConfig()) == ()
    vision = LlavaConfig()
    before = vision.to_dict()
    assert fit_parts(vision) == ()
    assert vision.to_dict() == before


def test_defaults_that_do_not_fit_are_changed_and_named() -> None:
    model = model_of("uvdoc", tokens=None)
    told = model.explained()
    size, changed = told.assumptions
    assert "the defaults of UVDocConfig" in size
    assert "do not fit together; changed: backbone_config.out_features ['stage6'] -> ['stage1'," in changed
    assert changed in told.to_html().replace("&#x27;", "'").replace("&gt;", ">")
    assert json.loads(told.to_json())["assumptions"] == list(told.assumptions)
    assert changed in str(told)


def test_defaults_that_fit_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "fit_parts", lambda config: pytest.fail("they fit"))
    (size,) = model_of("vit").explained().assumptions
    assert "the defaults of ViTConfig" in size


def test_what_a_file_says_is_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "fit_parts", lambda config: pytest.fail("it is the user's"))
    with pytest.raises(PlanningError, match="the constructor of LlamaForCausalLM"):
        model_of(config(tmp_path, hidden_act="no_such_function"))


def test_the_first_problem_is_reported_where_no_change_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "fit_parts", lambda config: ("nothing that helps",))
    with pytest.raises(PlanningError, match="to have 768 channels"):
        model_of("uvdoc", tokens=None)
