"""The families' facts: found by being there, disjoint, with meaningful names."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from ckpt_surgery import model_patches
from ckpt_surgery.codemods.facts.argument_names import is_gradient
from ckpt_surgery.model_patches import family_facts, family_files, family_of, family_tables, registry, vocabulary
from ckpt_surgery.model_patches.family import FamilyFacts, FamilyTables

FILES = family_files()
RULE_FIELDS = {field.name for field in fields(FamilyFacts)}
TABLES = {field.name for field in fields(FamilyTables)}


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


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_facts_and_only_those_that_are_read(name: str) -> None:
    constants = FILES[name].keys()
    assert constants - {"families"}
    assert constants <= RULE_FIELDS | TABLES | {"families"}
    assert "families" not in constants or constants & RULE_FIELDS


def test_an_unknown_constant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_patches, "_KNOWN", model_patches._KNOWN - {"kept"})
    with pytest.raises(ValueError, match=r"\w+\.py in model_patches has KEPT: there are BLOCKS, "):
        family_files.__wrapped__()


def test_no_family_has_two_sets_of_facts() -> None:
    named = [
        folder for name, own in FILES.items() if own.keys() & RULE_FIELDS for folder in own.get("families", (name,))
    ]
    assert [family for family, count in Counter(named).items() if count > 1] == []
    assert sorted(named) == sorted(registry())


@pytest.mark.parametrize("field", sorted(TABLES))
def test_no_two_files_speak_of_the_same_models(field: str) -> None:
    keys = [key for own in FILES.values() for key in own.get(field, ())]
    named = [name for key in keys for name in ([key] if isinstance(key, str) else key)]
    assert [name for name, count in Counter(named).items() if count > 1] == []
    assert sorted(named) == sorted(getattr(family_tables(), field))


@pytest.mark.parametrize("name", FILES)
def test_the_documentation_of_a_family_names_releases(name: str) -> None:
    text = importlib.import_module(f"{model_patches.__name__}.{name}").__doc__ or ""
    assert len(text) > 60
    assert re.search(r"\b[45]\.[\dx]|\ball releases|\bALiBi\b", text)


@pytest.mark.parametrize("name", FILES)
def test_facts_hold_no_logic(name: str) -> None:
    tree = ast.parse((Path(model_patches.__path__[0]) / f"{name}.py").read_text(encoding="utf-8"))
    assert {type(node) for node in tree.body[1:]} <= {ast.Assign}
    kinds = {type(node) for node in ast.walk(tree)}
    assert not kinds & {ast.Lambda, ast.IfExp, ast.NamedExpr}


@pytest.mark.parametrize("facts", [pytest.param(facts, id=name) for name, facts in registry().items()])
def test_facts_contradict_neither_themselves_nor_the_vocabulary(facts: FamilyFacts) -> None:
    assert not facts.gradient & facts.not_gradient
    assert not facts.gradient & facts.past_state
    assert not facts.blocks & facts.not_blocks
    assert not facts.gradient & vocabulary.PAST_STATE
    assert not {parameter for parameter in facts.past_state if is_gradient(parameter)}


def test_no_name_is_both_gradient_and_past_state() -> None:
    assert not vocabulary.GRADIENT & vocabulary.PAST_STATE
    assert not {name for name in vocabulary.PAST_STATE if is_gradient(name)}
    assert not {name for name in vocabulary.GRADIENT if not is_gradient(name)}
