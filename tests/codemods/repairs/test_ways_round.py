"""A repair is not safe if something bypasses the new layer, or stops it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability
from tests.codemods.snippets import INLINE, LAYER, PLAIN
from tests.codemods.tools import FOO, found, repair, texts, tree

HEAD = "class FooLayer(nn.Module):\n"
CALL = "    def __call__(self, *args):\n        return self.forward(*args)\n\n"
OWN_FORWARD = "    def train_fast(self):\n        self.forward = self.forward_train\n\n"
FLAG = "    def switch(self):\n        self.gradient_checkpointing = True\n\n"
REGISTERED = "class Registered(nn.Module):\n    def __init_subclass__(cls, name=None):\n        pass\n\n\n"
FIRST = "\n\nclass BarLayer(GradientCheckpointingLayer, FooLayer):\n    pass\n"


@pytest.mark.parametrize("text", [PLAIN, INLINE], ids=["a plain block", "an inline branch"])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (HEAD, HEAD + CALL, "`__call__` of its own"),
        (HEAD, HEAD + OWN_FORWARD, "assigns its own `forward`"),
        (HEAD, HEAD + FLAG, "sets `gradient_checkpointing` itself"),
        (HEAD, f'{REGISTERED}class FooLayer(Registered, name="foo"):\n', "`__init_subclass__` of its own"),
        (LAYER, LAYER.rstrip() + FIRST + "\n\n", "BarLayer names the layer in front of it"),
    ],
)
def test_what_leads_round_a_layer_is_not_safe(tmp_path: Path, text: str, old: str, new: str, said: str) -> None:
    assert old in text
    root = tree(tmp_path, text.replace(old, new))
    before = texts(root)
    safe = [finding for finding in found(root) if finding.applicability is Applicability.SAFE]
    assert not [finding for finding in safe if finding.code in ("CKPT001", "CKPT002")]
    assert any(said in finding.message for finding in found(root))
    repair(root, select=("CKPT001", "CKPT002"))
    assert texts(root) == before


def test_a_test_of_a_sub_configuration_is_not_safe(tmp_path: Path) -> None:
    test = "if self.gradient_checkpointing and"
    asked = 'if getattr(self.config, "gradient_checkpointing", False) and'
    model = INLINE.replace(test, asked).replace("from ...", "from transformers.")
    pretrained = tree(tmp_path / "model", {"modeling_foo.py": model})
    (only,) = found(pretrained, "CKPT002")
    assert "`apply --select CKPT002` puts layers" in only.message
    holder = (
        "\n\nclass FooForCausalLM(PreTrainedModel):\n    supports_gradient_checkpointing = True\n\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.model = FooModel(config.text)\n"
    )
    encoder = model.replace("(PreTrainedModel)", "(nn.Module)") + holder
    module = tree(tmp_path / "module", {"modeling_foo.py": encoder})
    (only,) = found(module, "CKPT002")
    assert "`apply --unsafe --select CKPT002` puts layers" in only.message
    assert "configuration, which transformers does not read" in only.message


def test_a_direct_call_of_forward_is_not_safe(tmp_path: Path) -> None:
    direct = "hidden_states = layer(hidden_states=hidden_states"
    root = tree(tmp_path, INLINE.replace(direct, direct.replace("layer(", "layer.forward(")))
    (only,) = found(root, "CKPT002")
    assert only.applicability is Applicability.UNSAFE
    assert "`layer.forward` bypasses a layer" in only.message


def test_an_import_that_another_file_may_take_from_here_stays(tmp_path: Path) -> None:
    switch = (
        "    def _set_gradient_checkpointing(self, module, value=False):\n"
        "        if isinstance(module, FooHelper):\n            module.gradient_checkpointing = value\n\n"
    )
    flag = "    supports_gradient_checkpointing = True\n"
    text = "from .helper import FooHelper\n" + INLINE.replace(flag, flag + "\n" + switch)
    root = tree(tmp_path, text)
    repair(root)
    after = texts(root)[FOO]
    assert "_set_gradient_checkpointing" not in after
    assert "from .helper import FooHelper\n" in after
