"""Blocks that do more than return: `apply` leaves them alone, since a repair would change their training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import apply
from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.static.snapshot import RULE_CODES
from tests.measure.test_outdated_switch import INLINE, LAYERS, loaded

pytestmark = [pytest.mark.both]


def changed(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def without_switch(text: str) -> str:
    return text[: text.index("    def _set_grad")] + text[text.index("class FooModel(") :]


PLAIN = changed(
    without_switch(LAYERS),
    {
        "class FooLayer(GradientCheckpointingLayer)": "class FooLayer(nn.Module)",
        "from transformers.modeling_layers import GradientCheckpointingLayer\n": "",
    },
)
BRANCH = changed(without_switch(INLINE), {"use_reentrant=False": "use_reentrant=True"})
MIXED = "return self.down(torch.tanh(self.up(hidden_states)))"
RESULT = "        return hidden_states\n"
CALLED = "layer(hidden_states)"
LOOP = "        for layer in"
INIT = "class FooAttention(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
TAKES = "    def forward(self, hidden_states):\n        return hidden_states + self.self_attn(hidden_states)"
LIST = "nn.ModuleList([FooLayer() for _ in range(3)])"


def mixed(statement: str) -> str:
    """Add a statement about the attention's result."""
    return MIXED.replace("return", "mixed =") + f"\n        {statement}\n        return mixed"


def plus(loss: str) -> str:
    """Add a loss to the model's result."""
    return RESULT.replace("hidden_states\n", f"hidden_states + {loss}\n")


COLLECT = "COLLECTED = {}\n\n\ndef collect(name, loss):\n    COLLECTED[name] = loss\n\n\n"
NOTE = "\n\n    def note(self, values):\n        setattr(self, 'router_loss', values.exp().mean())"
KEEPS = {
    "an attribute": {
        MIXED: mixed("self.aux_loss = mixed.pow(2).mean()"),
        RESULT: plus("sum(layer.self_attn.aux_loss for layer in self.layers)"),
    },
    "an attribute that a method sets": {
        MIXED: mixed("self.note(mixed)") + NOTE,
        RESULT: plus("sum(layer.self_attn.router_loss for layer in self.layers)"),
    },
    "a list that the block is handed": {
        TAKES: """\
    def forward(self, hidden_states, losses):
        mixed = self.self_attn(hidden_states)
        losses.append(mixed.pow(2).mean())
        return hidden_states + mixed""",
        CALLED: "layer(hidden_states, losses)",
        LOOP: f"        losses = []\n{LOOP}",
        RESULT: plus("sum(losses)"),
    },
    "a dict of the module, by a function": {
        "class FooAttention(": f"{COLLECT}class FooAttention(",
        MIXED: mixed("collect(id(self), mixed.pow(2).mean())"),
        LOOP: f"        COLLECTED.clear()\n{LOOP}",
        RESULT: plus("sum(COLLECTED.values())"),
    },
}
STATE = {
    INIT: f"{INIT}        self.mean = None\n",
    MIXED: f"""\
if self.mean is not None:
            hidden_states = hidden_states - self.mean
        self.mean = hidden_states.detach().mean(1, keepdim=True)
        {MIXED}""",
}
NUMBERED = {
    "class FooLayer(nn.Module):\n    def __init__(self)": "class FooLayer(nn.Module):\n    def __init__(self, at)",
    "        self.self_attn = FooAttention()": "        self.self_attn = FooAttention()\n        self.source = at - 1",
    "FooLayer() for _ in": "FooLayer(at) for at in",
    CALLED: "layer(hidden_states, past_key_values=cache)",
    LOOP: f"        cache = []\n{LOOP}",
}
ASKED = {
    **NUMBERED,
    TAKES: """\
    def forward(self, hidden_states, past_key_values=None):
        mixed = self.self_attn(hidden_states)
        if past_key_values is not None and self.source >= 0:
            mixed = mixed + past_key_values[self.source]
        if past_key_values is not None:
            past_key_values.append(mixed)
        return hidden_states + mixed""",
}
NOT_ASKED = {
    **NUMBERED,
    TAKES: """\
    def forward(self, hidden_states, past_key_values=None):
        mixed = self.self_attn(hidden_states)
        past_key_values.append(mixed)
        return hidden_states + past_key_values[0]""",
}
EVAL = """
    def train(self, mode=True):
        super().train(mode)
        MODE
        return self
"""
ONE_BY_ONE = "for layer in self.layers:\n            layer.train(False)"
LISTED = {LIST: "[FooLayer() for _ in range(3)]", "self.first(values)": "self.first(values).float()"}
HARMLESS = {
    "a value that nothing reads": {MIXED: f"self.last = hidden_states.detach()\n        {MIXED}"},
    "a size": {
        INIT: f"{INIT}        self.longest = 0\n",
        MIXED: f"self.longest = max(self.longest, hidden_states.shape[1])\n        {MIXED}",
    },
    "its own cache": {**ASKED, TAKES: ASKED[TAKES].replace("past_key_values[self.source]", "0.0")},
    "a list of its own": {MIXED: mixed("parts = []\n        parts.append(mixed)")},
}
WHOLE = """

class Whole(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.tower = FooModel(config)
        self.tower.eval()
"""
REGISTERED = {
    "an add_module beside the list": """
        for at, layer in enumerate(self.layers):
            self.add_module(str(at), layer)
""",
    "a stack of the list": "\n        self.stack = nn.ModuleList(self.layers)\n",
}


def step(file: Path, mode: bool | None, steps: int = 2) -> torch.Tensor:
    """Return the first weight's gradient after some steps, in a mode of checkpointing or without."""
    model = loaded(file)
    if mode is not None:
        model.gradient_checkpointing_enable({"use_reentrant": mode})
    for _ in range(steps):
        model.zero_grad()
        model(torch.linspace(-1, 1, 40, dtype=torch.float64).view(2, 5, 4)).pow(2).sum().backward()
    gradient = model.first.weight.grad
    assert isinstance(gradient, torch.Tensor)
    return gradient


def entries(file: Path) -> int:
    """Count the three blocks' runs in a step: three, and three more if they are recomputed."""
    model = loaded(file)
    model.gradient_checkpointing_enable()
    calls = []
    for layer in model.layers:
        layer.self_attn.register_forward_pre_hook(lambda *_: calls.append(1))
    model(torch.ones(2, 5, 4, dtype=torch.float64)).sum().backward()
    return len(calls)


def is_left_alone(file: Path, text: str, said: str) -> None:
    """Assert that the finding is unsafe, says why, and is not repaired."""
    file.write_text(text, encoding="utf-8")
    found = apply([file], select=RULE_CODES).findings  # a branch that works goes only where its rule is named
    (finding,) = (finding for finding in found if finding.code in ("CKPT001", "CKPT002"))
    assert finding.applicability is Applicability.UNSAFE
    assert said in finding.message
    assert "class FooLayer(nn.Module)" in file.read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "modeling_foo.py"


@pytest.mark.parametrize("name", KEEPS)
def test_a_gradient_that_a_block_keeps_would_be_lost(file: Path, name: str) -> None:
    is_left_alone(file, changed(PLAIN, KEEPS[name]), "keeps a tensor in `")
    before = step(file, None)
    torch.testing.assert_close(step(file, True), before)
    apply([file], unsafe=True, select=RULE_CODES)
    assert "class FooLayer(GradientCheckpointingLayer)" in file.read_text(encoding="utf-8")
    with pytest.raises((AssertionError, RuntimeError)):
        torch.testing.assert_close(step(file, True), before)


@pytest.mark.parametrize("mode", [False, True])
def test_a_recompute_would_find_the_state_that_the_forward_left(file: Path, mode: bool) -> None:
    is_left_alone(file, changed(PLAIN, STATE), "depends on `self.mean` and changes it")
    before = step(file, None)
    torch.testing.assert_close(step(file, mode), before)
    apply([file], unsafe=True, select=RULE_CODES)
    with pytest.raises((AssertionError, RuntimeError)):
        torch.testing.assert_close(step(file, mode), before)


@pytest.mark.parametrize(("changes", "said"), [(ASKED, "what another block put there"), (NOT_ASKED, "without asking")])
def test_a_layer_would_clear_the_cache_that_blocks_share(file: Path, changes: dict[str, str], said: str) -> None:
    is_left_alone(file, changed(PLAIN, changes), said)
    before = step(file, None)
    torch.testing.assert_close(step(file, False), before)
    apply([file], unsafe=True, select=RULE_CODES)
    with pytest.raises((AssertionError, AttributeError, TypeError)):
        torch.testing.assert_close(step(file, False), before)


@pytest.mark.parametrize("mode", ["self.layers.eval()", ONE_BY_ONE])
def test_blocks_in_eval_mode_would_lose_their_checkpointing(file: Path, mode: str) -> None:
    is_left_alone(file, BRANCH + EVAL.replace("MODE", mode), "sets FooLayer to eval mode")
    assert entries(file) == 6
    apply([file], unsafe=True, select=RULE_CODES)
    assert entries(file) == 3


def test_blocks_in_a_plain_list_would_lose_their_checkpointing(file: Path) -> None:
    is_left_alone(file, changed(BRANCH, LISTED), "FooModel.layers is a plain list")
    assert entries(file) == 6
    apply([file], unsafe=True, select=RULE_CODES)
    assert entries(file) == 3


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("mode", [False, True])
def test_what_a_recompute_repeats_is_safe(file: Path, name: str, mode: bool) -> None:
    file.write_text(changed(PLAIN, HARMLESS[name]), encoding="utf-8")
    before = step(file, None)
    apply([file], select=RULE_CODES)
    assert "class FooLayer(GradientCheckpointingLayer)" in file.read_text(encoding="utf-8")
    torch.testing.assert_close(step(file, mode), before)


@pytest.mark.parametrize("name", REGISTERED)
def test_a_list_of_registered_blocks_is_safe(file: Path, name: str) -> None:
    listed = f"{LISTED[LIST]}{REGISTERED[name]}"
    file.write_text(changed(BRANCH, {f"{LIST}\n": listed}), encoding="utf-8")
    apply([file], select=RULE_CODES)
    assert "class FooLayer(GradientCheckpointingLayer)" in file.read_text(encoding="utf-8")
    assert entries(file) == 6


def test_a_tower_that_is_in_eval_mode_as_a_whole_is_safe(file: Path) -> None:
    file.write_text(BRANCH + WHOLE, encoding="utf-8")
    (finding,) = apply([file], select=RULE_CODES, write=False).findings
    assert finding.applicability is Applicability.SAFE
