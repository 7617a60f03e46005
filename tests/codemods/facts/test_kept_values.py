"""Values that a forward stores outside its result: with their gradient, as state, or not at all."""

from __future__ import annotations

import ast

import pytest

from ckpt_surgery.codemods.facts.kept_values import ValueFlow, kept_values

CLASS = """
class Foo(nn.Module):
    def __init__(self):
        self.proj = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("freqs", torch.ones(4))

    def forward(self, hidden_states, attention_mask=None, losses=None, seq_len=None, past_key_values=None, **kwargs):
        out = self.proj(hidden_states)
        BODY
        return out

    def note(self, value):
        self.noted = value

    @torch.no_grad()
    def count(self, value):
        self.counted = value
"""
FUNCTIONS = "def collect(value):\n    LOSSES.append(value)\n\n\ndef shown(value):\n    print(value)\n"


def kept(body: str) -> list[tuple[str, str]]:
    """Tell what is kept: `gradient`, `state` or both."""
    cls = ast.parse(CLASS.replace("BODY", body.replace("\n", "\n        "))).body[0]
    assert isinstance(cls, ast.ClassDef)
    methods = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
    functions = {node.name: node for node in ast.parse(FUNCTIONS).body if isinstance(node, ast.FunctionDef)}
    found = kept_values(methods, functions.get)
    return [
        (value.target, " ".join(["gradient"] * (value.flow is ValueFlow.GRADIENT) + ["state"] * value.is_state))
        for value in found
    ]


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ("self.loss = out.mean()", "self.loss"),
        ("self.loss: torch.Tensor = out.mean()", "self.loss"),
        ("x, self.loss = out, self.scale.sum()", "self.loss"),
        ("self.losses.append(out.mean())", "self.losses"),
        ("self.info['loss'] = out.mean()", "self.info"),
        ("self.gate.loss = out.mean()", "self.gate"),
        ("setattr(self, 'loss', out.mean())", "self.loss"),
        ("self.note(out)", "self.noted"),
        ("self.note(value=out)", "self.noted"),
        ("losses.append(out.mean())", "losses"),
        ("losses['loss'] = out.mean()", "losses"),
        ("losses[self.layer_idx] = out.mean()", "losses"),
        ("for part in out:\n    losses.append(part)", "losses"),
        ("losses += [out.mean()]", "losses"),
        ("kept = losses\nkept.append(out)", "losses"),
        ("kwargs['losses'].append(out)", "kwargs['losses']"),
        ("kept = kwargs.get('losses')\nkept.append(out)", "kwargs['losses']"),
        ("losses.update(loss=torch.stack([out]).mean())", "losses"),
        ("LOSSES.append(out.mean())", "LOSSES"),
        ("losses_of.module.append(out.mean())", "losses_of.module"),
        ("global TOTAL\nTOTAL = TOTAL + out.mean()", "TOTAL"),
        ("collect(out.mean())", "LOSSES"),
        ("with torch.autocast('cpu'):\n    self.loss = out.mean()", "self.loss"),
        ("if self.training:\n    self.loss = (out * attention_mask).sum()", "self.loss"),
        ("try:\n    self.loss = out.mean()\nfinally:\n    pass", "self.loss"),
    ],
)
def test_a_gradient_that_is_kept(body: str, target: str) -> None:
    found = kept(body)
    assert [name for name, kind in found if kind.startswith("gradient")] == [target]


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "self.loss = out.detach().mean()",
        "with torch.no_grad():\n    self.loss = out.mean()",
        "self.count(out)",
        "self.shape = out.shape",
        "self.size = out.size(0) + len(out)",
        "self.mask = attention_mask",
        "self.longest = seq_len",
        "self.cos = torch.outer(torch.arange(seq_len), self.freqs).cos()",
        "self.top = out.argmax(-1)",
        "self.zeros = torch.zeros_like(out)",
        "parts = []\nparts.append(out)",
        "parts = {}\nparts['a'] = out\nout = parts['a']",
        "out.losses = out",
        "out[:, 0] = hidden_states",
        "out += hidden_states",
        "out.add_(hidden_states)",
        "hidden_states = hidden_states * 2\nhidden_states += 1",
        "self.calls += 1",
        "self.calls = self.calls + 1",
        "self.ema.mul_(0.9).add_(out.detach())",
        "self.ema.copy_(out.detach())",
        "scale = kwargs.pop('scale')",
        "attention_mask += 1",
        "out = out + torch.rand(4)",
        "kwargs['bias'] = out",
        "past_key_values.update(out, out, self.layer_idx)",
        "shown(out)",
        "f = lambda value: losses.append(value)",
    ],
)
def test_nothing_is_kept(body: str) -> None:
    assert kept(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "out = out + self.mean\nself.mean = out.detach().mean()",
        "self.total += out.detach().sum()",
        "self.calls += 1\nout = out / self.calls",
        "out = out / self.calls\nself.calls = self.calls + 1",
        "out = out - self.ema\nself.ema.mul_(0.9).add_(out.detach())",
        "out = out * random.random()",
        "out = out * np.random.rand()",
        "out = out * losses.pop()",
        "hidden_states += 1",
        "residual = hidden_states\nresidual += out",
        "hidden_states.mul_(2)",
        "hidden_states[:, 0] = out",
        "if self.mean is not None:\n    out = out - self.mean\nwith torch.no_grad():\n    self.mean = out.mean()",
    ],
)
def test_state_that_the_next_run_reads(body: str) -> None:
    assert [kind for _, kind in kept(body)] == ["state"]


def test_a_value_that_is_read_after_it_was_set_is_not_state() -> None:
    assert kept("self.mean = out.detach().mean()\nout = out - self.mean") == []


def test_a_part_of_a_block_may_write_into_what_it_is_given() -> None:
    text = "def forward(self, hidden_states):\n    hidden_states += 1\n"
    (forward,) = ast.parse(text).body
    assert isinstance(forward, ast.FunctionDef)
    assert kept_values({"forward": forward}, lambda _: None)
    assert not kept_values({"forward": forward}, lambda _: None, is_block=False)
