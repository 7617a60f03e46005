"""The families' facts: found by folder, disjoint, about names that mean something."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

from ckpt_surgery import model_patches
from ckpt_surgery.model_patches import family_facts, family_of, registry, vocabulary
from ckpt_surgery.model_patches.family import FamilyFacts

MODULES = [module.name for module in pkgutil.iter_modules(model_patches.__path__)]
PACKAGE = model_patches.__name__
FAMILIES = [name for name in MODULES if hasattr(importlib.import_module(f"{PACKAGE}.{name}"), "FACTS")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/transformers/models/zamba2/modeling_zamba2.py", "zamba2"),
        ("models/deprecated/foo/modeling_foo.py", "foo"),
        ("models/foo/modular_foo.py", "foo"),
        ("models/qwen2_audio/modeling_qwen2_audio.py", "qwen2_audio"),
        ("remote/0a1b2c/modeling_bar.py", "bar"),
        ("remote/0a1b2c/modular_bar.py", "bar"),
        ("blocks.py", "blocks"),
    ],
)
def test_the_family_is_the_model_folder_or_what_the_file_is_called(path: str, expected: str) -> None:
    assert family_of(path) == expected


def test_a_family_gets_its_own_facts_and_no_other() -> None:
    assert "xLSTMBlock.state" in family_facts("models/xlstm/modeling_xlstm.py").past_state
    assert family_facts("models/llama/modeling_llama.py") == FamilyFacts()
    assert family_facts("models/zamba/modeling_zamba.py") is family_facts("models/zamba2/modeling_zamba2.py")


@pytest.mark.parametrize("name", FAMILIES)
def test_each_file_of_facts_is_registered_and_says_something(name: str) -> None:
    facts = importlib.import_module(f"{PACKAGE}.{name}").FACTS
    for family in facts.families or (name,):
        assert registry()[family] is facts
    assert facts != FamilyFacts(families=facts.families)


def test_no_family_has_two_sets_of_facts() -> None:
    named = [
        family
        for name in FAMILIES
        for family in (importlib.import_module(f"{PACKAGE}.{name}").FACTS.families or (name,))
    ]
    assert [family for family, count in Counter(named).items() if count > 1] == []
    assert sorted(named) == sorted(registry())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_documentation_of_a_family_names_releases(name: str) -> None:
    text = importlib.import_module(f"{PACKAGE}.{name}").__doc__ or ""
    assert len(text) > 60
    assert re.search(r"\b[45]\.[\dx]|\ball releases|\bALiBi\b", text)


@pytest.mark.parametrize("name", FAMILIES)
def test_facts_hold_no_logic(name: str) -> None:
    tree = ast.parse((Path(model_patches.__path__[0]) / f"{name}.py").read_text(encoding="utf-8"))
    kinds = {type(node) for node in ast.walk(tree)}
    assert not kinds & {ast.FunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.Lambda, ast.IfExp}


@pytest.mark.parametrize("name", FAMILIES)
def test_facts_contradict_neither_themselves_nor_the_vocabulary(name: str) -> None:
    facts = importlib.import_module(f"{PACKAGE}.{name}").FACTS
    assert not facts.gradient & facts.not_gradient
    assert not facts.gradient & facts.past_state
    assert not facts.blocks & facts.not_blocks
    assert not {parameter for parameter in facts.gradient if vocabulary.is_past_state(parameter)}
    assert not {parameter for parameter in facts.past_state if vocabulary.is_gradient(parameter)}


def test_no_name_is_both_gradient_and_past_state() -> None:
    assert not vocabulary.GRADIENT & vocabulary.PAST_STATE
    assert not {name for name in vocabulary.PAST_STATE if vocabulary.is_gradient(name)}
    assert not {name for name in vocabulary.GRADIENT if not vocabulary.is_gradient(name)}


@pytest.mark.parametrize(
    ("name", "annotation", "expected"),
    [
        ("output_attentions", "", True),
        ("use_cache", "", True),
        ("attention_mask", "", True),
        ("position_ids", "", True),
        ("scale", "float", True),
        ("flag", "bool | None", True),
        ("flag", "Optional[bool]", True),
        ("flag", "Optional[torch.LongTensor]", True),
        ("hidden_states", "torch.Tensor", False),
        ("states", "Optional[torch.FloatTensor]", False),
        ("interest", "Interval", False),
        ("input_dimensions", "", True),
        ("topk_indices", "", True),
        ("sizes", "tuple[int, int] | None", True),
        ("sizes", "Optional[Tuple[int, ...]]", True),
        ("pair", "tuple[torch.Tensor, int]", False),
    ],
)
def test_options_masks_and_indices_are_switches(name: str, annotation: str, expected: bool) -> None:
    assert vocabulary.is_switch(name, annotation) is expected


def test_a_name_that_is_recurrent_state_somewhere_proves_nothing() -> None:
    assert [name for name in ("state", "ssm_state", "conv_cache", "v_first") if vocabulary.may_be_state(name)] == [
        "state",
        "ssm_state",
        "conv_cache",
    ]


def test_containers_are_known_by_their_annotation() -> None:
    annotations = ("list[torch.Tensor]", "Optional[Tuple[torch.Tensor]]", "torch.Tensor | None", "Listener", "")
    assert list(map(vocabulary.is_container, annotations)) == [True, True, False, False, False]
