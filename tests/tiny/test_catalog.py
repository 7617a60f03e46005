"""The classes that `model_classes` lists without importing them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers

from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny import CannotBuild, ModelEntry, model_classes

pytestmark = pytest.mark.both


def test_a_class_is_listed_once_with_all_its_heads() -> None:
    entry = model_classes()["BertForMaskedLM"]
    assert (entry.name, entry.model_type) == ("BertForMaskedLM", "bert")
    assert "MASKED_LM" in entry.heads
    assert model_classes()["BertModel"].heads[0] == "MODEL"
    assert entry.load() is transformers.BertForMaskedLM
    assert entry.config_class() is transformers.BertConfig
    # the names of classes that no mapping lists tell their heads
    assert model_classes()["VisualBertForMultipleChoice"].heads == ("MULTIPLE_CHOICE",)
    assert model_classes()["ViltForMaskedLM"].heads == ("MASKED_LM",)


def test_a_class_of_several_types_knows_them_all() -> None:
    entry = model_classes()["GPT2Model"]
    assert (entry.model_type, set(entry.types)) == ("gpt2", {"gpt-sw3", "gpt2"})
    assert all(entry.model_type in entry.types for entry in model_classes().values())


def test_another_type_has_its_own_configuration_if_its_parts_are_the_same() -> None:
    entry = model_classes()["Llama4ForCausalLM"]
    assert entry.config_class("llama4") is entry.config_class() is transformers.Llama4TextConfig
    several = [(entry, kind) for entry in model_classes().values() for kind in entry.types if kind != entry.model_type]
    assert any(entry.config_class(kind) is not entry.config_class() for entry, kind in several)


@pytest.mark.parametrize("part", ["ClvpEncoder", "WhisperEncoder", "SiglipTextModel", "Blip2VisionModel"])
def test_parts_that_no_mapping_lists_are_there(part: str) -> None:
    entry = model_classes()[part]
    assert entry.heads == ()
    assert entry.load().__name__ == part
    assert issubclass(entry.config_class(), transformers.PretrainedConfig)


def test_every_exported_model_is_listed_or_left_out_for_a_reason() -> None:
    listed = model_classes()
    missing = []
    for name, module in transformers._class_to_module.items():
        if ".modeling_" not in module or ".modeling_tf_" in module or ".modeling_flax_" in module or name in listed:
            continue
        if name in family_tables().left_out or name.endswith("PreTrainedModel"):
            continue
        with suppress(ImportError, RuntimeError):  # a package that is not installed
            exported = getattr(transformers, name)
            if isinstance(exported, type) and issubclass(exported, transformers.PreTrainedModel):
                missing.append(name)
    assert missing == []


def test_listing_imports_no_model() -> None:
    code = (
        "import sys\n"
        "from ckpt_surgery.tiny import model_classes\n"
        "assert len(model_classes()) > 800\n"
        "print([m for m in sys.modules if '.modeling_' in m and '.models.' in m and '.auto.' not in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_class_that_cannot_be_imported_says_why() -> None:
    entry = ModelEntry("NoSuchModel", "none", ("MODEL",))
    with pytest.raises(CannotBuild, match=r"^no tiny NoSuchModel can be made: import raised AttributeError"):
        entry.load()
