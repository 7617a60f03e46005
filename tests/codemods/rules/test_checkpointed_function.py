"""The claims of CKPT012 in a real step: small functions trained with and without checkpointing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.codemods.tools import FOO, found, repair, tree

pytestmark = [pytest.mark.torch, pytest.mark.both]

HEAD = """
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint


def run_layer(layer, states, aux):
    states = torch.tanh(layer(states) + aux)
    return states, torch.sin(states)


def run_both(layer, both):
    return run_layer(layer, *both)


def wrapped(function):
    def custom_forward(*inputs):
        return function(*inputs)

    return custom_forward


def recomputed(wanted, function, *args):
    return checkpoint(wrapped(function), *args, use_reentrant=False) if wanted else function(*args)


def forward(layers, states, aux):
    for layer in layers:
        {body}
    return states, aux
"""
REFERENCE = "run_layer(layer, states, aux)"
STEP = """

class NeverEnds(Exception):
    pass


def step(function):
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
    first, runs = torch.nn.Linear(4, 4), []

    def count(*_):
        runs.append(1)
        if len(runs) > 50:
            raise NeverEnds

    for layer in layers:
        layer.register_forward_hook(count)
    states = first(torch.ones(2, 4))
    states, aux = function(layers, states, torch.sin(states))
    (states.sum() + aux.sum()).backward()
    gradients = [parameter.grad for parameter in (*layers.parameters(), *first.parameters())]
    return (states + aux).detach(), [torch.zeros(1) if gradient is None else gradient for gradient in gradients]


def reference(layers, states, aux):
    for layer in layers:
        states, aux = run_layer(layer, states, aux)
    return states, aux


def outcome():
    expected = step(reference)
    try:
        made = step(forward)
    except Exception as error:
        return type(error).__name__
    assert torch.equal(expected[0], made[0]), "another forward"
    return "equal" if all(map(torch.allclose, expected[1], made[1])) else "wrong gradients"
"""
PASSED = "states, aux = checkpoint(run_layer, layer, states, aux, use_reentrant={mode})"
LATE = "states, aux = checkpoint(lambda x, y: run_layer(layer, x, y), states, aux, use_reentrant={mode})"
CARRIED = "states, aux = checkpoint(lambda x, layer=layer: run_layer(layer, x, aux), states, use_reentrant={mode})"
BOUND = "states, aux = checkpoint(lambda x, y, layer=layer: run_layer(layer, x, y), states, aux, use_reentrant={mode})"
PARTIAL = "states, aux = checkpoint(partial(run_layer, layer, aux=aux), states, use_reentrant={mode})"
LIST = "states, aux = checkpoint(run_both, layer, [states, aux], use_reentrant={mode})"
KEYWORD = "states, aux = checkpoint(run_layer, layer, states, aux=aux, use_reentrant={mode})"
ALIAS = "run = checkpoint if aux is not None else recomputed; " + LATE.replace("checkpoint(", "run(")
PARTIAL_LATE = (
    "states, aux = checkpoint(partial(lambda k, x, y: run_layer(layer, x, y), 1), states, aux, use_reentrant={mode})"
)
HELPER = "states, aux = recomputed(True, lambda x, y: run_layer(layer, x, y), states, aux)"
HELPER_BOUND = HELPER.replace("x, y:", "x, y, layer=layer:")
HELPER_PARTIAL = "states, aux = recomputed(True, partial(run_layer, layer), states, aux)"
HELPER_FACTORY = "states, aux = recomputed(True, wrapped(partial(run_layer, layer)), states, aux)"
FAILS = "RuntimeError"
ENDLESS = "NeverEnds"


def trained(path: Path, reference: str = REFERENCE) -> dict[str, Any]:
    """Run the file; add `outcome`, a step's gradients or its error, to its names."""
    names: dict[str, Any] = {}
    exec(path.read_text(encoding="utf-8") + STEP.replace(REFERENCE, reference), names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return names | {"outcome": names["outcome"]()}


@pytest.mark.parametrize(
    ("body", "mode", "outcome", "finding"),
    [
        pytest.param(PASSED, True, "equal", "", id="arguments: reentrant"),
        pytest.param(PASSED, False, "equal", "", id="arguments: non-reentrant"),
        pytest.param(BOUND, True, "equal", "", id="a default binds the layer: reentrant"),
        pytest.param(BOUND, False, "equal", "", id="a default binds the layer: non-reentrant"),
        pytest.param(LATE, True, "wrong gradients", "looks up `layer`", id="the loop rebinds the layer: reentrant"),
        pytest.param(
            LATE, False, "wrong gradients", "looks up `layer`", id="the loop rebinds the layer: non-reentrant"
        ),
        pytest.param(CARRIED, True, ENDLESS, "looks up `aux`", id="the loop rebinds a tensor: reentrant"),
        pytest.param(
            CARRIED, False, "wrong gradients", "looks up `aux`", id="the loop rebinds a tensor: non-reentrant"
        ),
        pytest.param(ALIAS, False, "wrong gradients", "looks up `layer`", id="another name for checkpoint"),
        pytest.param(PARTIAL_LATE, False, "wrong gradients", "looks up `layer`", id="a partial of a lambda"),
        pytest.param(HELPER, False, "wrong gradients", "looks up `layer`", id="a helper"),
        pytest.param(HELPER_BOUND, False, "equal", "", id="a helper: a default binds the layer"),
        pytest.param(HELPER_PARTIAL, False, "equal", "", id="a helper: a partial binds the layer"),
        pytest.param(HELPER_FACTORY, False, "equal", "", id="a helper: a factory binds the layer"),
        pytest.param(PARTIAL, True, FAILS, "captures `aux`", id="a partial: reentrant"),
        pytest.param(PARTIAL, False, "equal", "", id="a partial: non-reentrant"),
        pytest.param(LIST, True, FAILS, "inside `[states, aux]`", id="a list: reentrant"),
        pytest.param(LIST, False, "equal", "", id="a list: non-reentrant"),
        pytest.param(KEYWORD, True, "ValueError", "`aux` by keyword", id="a keyword: reentrant"),
        pytest.param(KEYWORD, None, "ValueError", "`aux` by keyword", id="a keyword: no mode"),
        pytest.param(KEYWORD, False, "equal", "", id="a keyword: non-reentrant"),
    ],
)
def test_a_step_goes_wrong_exactly_where_there_is_a_finding(
    tmp_path: Path, body: str, mode: bool | None, outcome: str, finding: str
) -> None:
    root = tree(tmp_path, HEAD.format(body=body.format(mode=mode).replace(", use_reentrant=None", "")))
    messages = [found.message for found in found(root, "CKPT012")]
    assert len(messages) == bool(finding)
    assert all(finding in message for message in messages)
    assert trained(root / FOO)["outcome"] == outcome


@pytest.mark.parametrize("mode", [True, None])
def test_the_repair_of_a_keyword_trains_as_without_checkpointing(tmp_path: Path, mode: bool | None) -> None:
    root = tree(tmp_path, HEAD.format(body=KEYWORD.format(mode=mode).replace(", use_reentrant=None", "")))
    repair(root, select=("CKPT012",))
    assert trained(root / FOO)["outcome"] == "equal"


def test_past_state_is_written_again_in_the_recompute(tmp_path: Path) -> None:
    body = "states, aux = checkpoint(run, layer, states, aux, past_key_values, use_reentrant=False)"
    text = HEAD.replace(
        "def run_both",
        "past_key_values = []\n\n\ndef run(layer, states, aux, past):\n    "
        "past.append(1)\n    return run_layer(layer, states, aux)\n\n\ndef run_both",
    )
    root = tree(tmp_path, text.format(body=body))
    assert ["`past_key_values`, past state" in finding.message for finding in found(root, "CKPT012")] == [True]
    names = trained(root / FOO)
    assert names["outcome"] == "equal"
    assert len(names["past_key_values"]) == 6, "three layers, each written twice"


STRAIGHT = HEAD.replace(
    "def run_both", "def step_by_step(layer, states, aux):\n    {line}\n    return {names}\n\n\ndef run_both"
)
"""The head with a function that has no loop."""


@pytest.mark.parametrize(
    ("names", "outcome", "finding"),
    [
        pytest.param(
            "states, aux", "wrong gradients", "is rebound after the call", id="what the call reads is rebound"
        ),
        pytest.param("new, new_aux", "equal", "", id="what the call reads stays"),
    ],
)
def test_without_a_loop(tmp_path: Path, names: str, outcome: str, finding: str) -> None:
    line = f"{names} = checkpoint(lambda: run_layer(layer, states, aux), use_reentrant=False)"
    body = "states, aux = step_by_step(layer, states, aux)"
    root = tree(tmp_path, STRAIGHT.format(line=line, names=names, body=body))
    assert [finding in item.message for item in found(root, "CKPT012")] == [True] * bool(finding)
    assert trained(root / FOO)["outcome"] == outcome


WRITTEN = HEAD.replace(
    "def run_both",
    "def run(layer, hidden_states, aux):\n    {line}\n    return run_layer(layer, hidden_states, aux)\n\n\n"
    "def run_both",
)
"""The head with a function that may write into its argument."""


@pytest.mark.parametrize(
    ("line", "given", "outcome", "finding"),
    [
        pytest.param("aux.add_(1.0)", "aux * 1, use_reentrant=False", FAILS, "is given", id="by position"),
        pytest.param("hidden_states += 1.0", "aux * 1, use_reentrant=True", FAILS, "is given", id="reentrant"),
        pytest.param("hidden_states[:, 0] = 0", "aux * 1, use_reentrant=False", FAILS, "is given", id="an item"),
        pytest.param(
            "aux.add_(1.0)", "aux=aux * 1, use_reentrant=False", "wrong gradients", "keyword", id="by keyword"
        ),
        pytest.param("aux.relu_()", "aux=aux * 1, use_reentrant=False", "equal", "", id="the same again"),
        pytest.param("aux = aux + 1; aux.add_(1.0)", "aux * 1, use_reentrant=False", "equal", "", id="a copy"),
    ],
)
def test_an_input_that_is_written_into(tmp_path: Path, line: str, given: str, outcome: str, finding: str) -> None:
    body = f"states, aux = checkpoint(run, layer, states * 1, {given})"
    root = tree(tmp_path, WRITTEN.format(line=line, body=body))
    assert [finding in item.message for item in found(root, "CKPT012")] == [True] * bool(finding)
    assert trained(root / FOO, reference="run(layer, states * 1, aux * 1)")["outcome"] == outcome
