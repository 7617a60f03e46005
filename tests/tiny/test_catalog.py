"""What `model_classes` lists, and that it imports nothing for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers

from ckpt_surgery.tiny import CannotBuild, ModelEntry, model_classes

pytestmark = pytest.mark.both


def test_a_class_stands_once_with_all_its_heads() -> None:
    entry = model_classes()["BertForMaskedLM"]
    assert (entry.name, entry.model_type) == ("BertForMaskedLM", "bert")
    assert "MASKED_LM" in entry.heads
    assert model_classes()["BertModel"].heads[0] == "MODEL"


def test_a_class_of_several_types_knows_them_all() -> None:
    entry = model_classes()["GPT2Model"]
    assert (entry.model_type, set(entry.types)) == ("gpt-sw3", {"gpt-sw3", "gpt2"})
    assert all(entry.model_type in entry.types for entry in model_classes().values())


def test_an_entry_loads_its_class_and_configuration() -> None:
    entry = model_classes()["LlamaForCausalLM"]
    assert entry.load() is transformers.LlamaForCausalLM
    assert entry.config_class() is transformers.LlamaConfig


def test_parts_that_no_mapping_lists_are_there() -> None:
    entry = model_classes()["ClvpEncoder"]
    assert entry.heads == ()
    assert entry.load().__name__ == "ClvpEncoder"
    assert entry.config_class().__name__ == "ClvpEncoderConfig"


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
