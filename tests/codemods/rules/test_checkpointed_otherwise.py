"""Models that checkpoint their blocks in unusual forms: none is reported as never checkpointed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery import apply
from ckpt_surgery.static.check import check
from tests.codemods.snippets import CALL, HEAD, LAYER, MODEL, PLAIN
from tests.codemods.tools import tree

FILE = "models/foo/modeling_foo.py"
IMPORTS = """\
import functools

import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
"""
WRAPPER = "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper\n"
HELPERS = """\
REMAT = functools.partial(checkpoint, use_reentrant=False)


def call(function, *args):
    return function(*args)


def checkpointed(function):
    def run(self, *args):
        return checkpoint(function, self, *args, use_reentrant=False)

    return run


class Recomputed(torch.autograd.Function): ...


"""
RUN = "    def run(self, layer, hidden_states):\n        return layer(hidden_states)\n\n"
SEGMENT = """\
    def segment(self, hidden_states, start):
        for layer in self.layers[start : start + 2]:
            hidden_states = layer(hidden_states)
        return hidden_states

"""
CUSTOM = """\
    def custom(self, module):
        def custom_forward(*inputs):
            return module(*inputs)

        return custom_forward

"""
LOOP = f"        for layer in self.layers:\n            hidden_states = {CALL}\n"
FORWARD = "    def forward("


def model(body: str = LOOP, *, layer: str = LAYER, methods: str = "", imports: str = IMPORTS) -> str:
    """Return a model with this loop, this block and these methods."""
    looped = MODEL.replace(LOOP, body).replace(FORWARD, methods + FORWARD, 1)
    attention = PLAIN[len(HEAD) : PLAIN.index("class FooLayer")]
    return imports + HEAD + HELPERS + attention + layer + looped


def each(call: str) -> str:
    return LOOP.replace(CALL, call)


def branch(call: str) -> str:
    """Return a loop that does so where the model checkpoints."""
    return f"""\
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = {call}
            else:
                hidden_states = {CALL}
"""


LOOPS = {
    "a function for stacks": "        hidden_states = checkpoint_sequential(self.layers, 2, hidden_states)\n",
    "the whole stack": branch("checkpoint(self.layers, hidden_states)").replace("for layer in self.layers", "if True"),
    "a function of autograd": branch("Recomputed.apply(layer, hidden_states)"),
    "a bound method to a function of autograd": branch("Recomputed.apply(layer.forward, hidden_states)"),
    "a name of the module": branch("REMAT(layer, hidden_states)"),
    "a name that is bound before the loop": (
        "        run = checkpoint if self.gradient_checkpointing else call\n" + each("run(layer, hidden_states)")
    ),
    "a partial of both": each("functools.partial(checkpoint, layer, use_reentrant=False)(hidden_states)"),
    "another method of the block": each("checkpoint(layer.step, hidden_states)"),
    "a lambda": each("checkpoint(lambda states, layer=layer: layer(states), hidden_states)"),
    "a method that runs it": each("checkpoint(self.run, layer, hidden_states)"),
    "a method that runs some": each("checkpoint(self.segment, hidden_states, 0)"),
    "a method that makes a function": each("checkpoint(self.custom(layer), hidden_states)"),
    "a function of elsewhere, by its name": each("maybe_checkpoint(layer, hidden_states)"),
    "a function of elsewhere, by the test": branch("elsewhere(layer, hidden_states)"),
}
OWN = (
    "    def _inner(self, hidden_states):\n        return self.self_attn(hidden_states)\n\n    def step(self): ...\n\n"
)
LAYERS = {
    "a method of its own": "checkpoint(self._inner, hidden_states)",
    "the forward of its base": "checkpoint(super().forward, hidden_states)",
}


def codes(root: Path, text: str) -> set[str]:
    """Return the codes of a file's findings, information included."""
    tree(root, {FILE: text})
    return {finding.code for finding in check([root], jobs=1).findings}


def test_a_plain_loop_beside_the_same_helpers_is_found(tmp_path: Path) -> None:
    assert codes(tmp_path, model(methods=RUN + SEGMENT + CUSTOM)) == {"CKPT001"}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop(tmp_path: Path, name: str) -> None:
    text = model(LOOPS[name], layer=LAYER.replace(FORWARD, OWN + FORWARD), methods=RUN + SEGMENT + CUSTOM)
    assert not codes(tmp_path, text) & {"CKPT001", "CKPT009"}


@pytest.mark.parametrize("name", LAYERS)
def test_a_block(tmp_path: Path, name: str) -> None:
    layer = LAYER.replace(FORWARD, OWN + FORWARD).replace("return self.self_attn(hidden_states)\n", "{}\n")
    layer = layer.replace("{}", "return self.self_attn(hidden_states)", 1).replace("{}", f"return {LAYERS[name]}")
    assert "CKPT001" not in codes(tmp_path, model(layer=layer))


def test_a_block_by_the_decorator_of_its_forward(tmp_path: Path) -> None:
    layer = LAYER.replace(FORWARD, "    @checkpointed\n" + FORWARD)
    assert not codes(tmp_path, model(layer=layer))


def test_another_decorator_says_nothing(tmp_path: Path) -> None:
    layer = LAYER.replace(FORWARD, "    @torch.no_grad()\n    @DECORATORS[0]\n" + FORWARD)
    assert codes(tmp_path, model(layer=layer)) == {"CKPT001"}


@pytest.mark.parametrize(("method", "found"), [("__call__", set()), ("forward", {"CKPT001"})])
def test_a_block_inherits_the_call_that_checkpoints_it(tmp_path: Path, method: str, found: set[str]) -> None:
    base = f"""\
class Recomputing(nn.Module):
    def {method}(self, *args):
        return checkpoint(super().{method}, *args, use_reentrant=False)


"""
    layer = base + LAYER.replace("nn.Module", "Recomputing")
    assert codes(tmp_path, model(layer=layer)) & {"CKPT001"} == found


def test_blocks_inside_wrappers_of_torch(tmp_path: Path) -> None:
    assert not codes(tmp_path, model(methods=RUN, imports=IMPORTS + WRAPPER))
    wrapped = model(imports=IMPORTS + WRAPPER).replace("[FooLayer(config) ", "[checkpoint_wrapper(FooLayer(config)) ")
    assert not codes(tmp_path, wrapped)


def test_blocks_inside_a_part_that_is_checkpointed_as_one(tmp_path: Path) -> None:
    encoder = MODEL.replace("FooModel(PreTrainedModel)", "FooEncoder(nn.Module)").replace(
        "__init__(config)", "__init__()"
    )
    start = MODEL.index("        self.layers")
    whole = MODEL[:start] + "        self.encoder = FooEncoder(config)\n\n" + MODEL[MODEL.index(FORWARD) :]
    once = branch("checkpoint(self.encoder, hidden_states)").replace("for layer in self.layers", "if True")
    whole = whole.replace(LOOP, once.replace(CALL, "self.encoder(hidden_states)"))
    text = IMPORTS + HEAD + PLAIN[len(HEAD) : PLAIN.index("class FooModel")]
    text += encoder.replace("    supports_gradient_checkpointing = True\n\n", "") + "\n\n" + whole
    assert "CKPT001" not in codes(tmp_path, text)


UTILS = "models/foo/utils.py"
RUNS = "def run_block(block, *args):\n    return {}(block, *args)\n"
CHECKPOINTS = "from torch.utils.checkpoint import checkpoint\n\n\n" + RUNS.format("checkpoint")
NEUTRAL = each("run_block(layer, hidden_states)")
LOOPED = """\
from torch.utils.checkpoint import checkpoint as remat


def run_block(blocks, states):
    for at, block in enumerate(blocks):
        states = remat(block, states)
    return states
"""
HELPER_FILES = {
    "beside it": ("from .utils import run_block", NEUTRAL, {UTILS: CHECKPOINTS}),
    "under another name": (
        "from .utils import run_block as run",
        each("run(layer, hidden_states)"),
        {UTILS: CHECKPOINTS},
    ),
    "by its module": ("from . import utils", each("utils.run_block(layer, hidden_states)"), {UTILS: CHECKPOINTS}),
    "by a star": ("from .utils import *", NEUTRAL, {UTILS: CHECKPOINTS}),
    "of a package": (
        "from ..common import run_block",
        NEUTRAL,
        {"models/common/__init__.py": "from .runs import run_block\n", "models/common/runs.py": CHECKPOINTS},
    ),
    "by an absolute import": ("from models.foo.utils import run_block", NEUTRAL, {UTILS: CHECKPOINTS}),
    "from the same folder": ("from utils import run_block", NEUTRAL, {UTILS: CHECKPOINTS}),
    "through another": (
        "from .utils import run_block",
        NEUTRAL,
        {
            UTILS: f"from .deeper import inner\n\n\n{RUNS.format('inner')}",
            "models/foo/deeper.py": CHECKPOINTS.replace("run_block", "inner"),
        },
    ),
    "for a whole stack": (
        "from .utils import run_block",
        "        hidden_states = run_block(self.layers, hidden_states)\n",
        {UTILS: LOOPED},
    ),
}


def of_helper(root: Path, imported: str, loop: str, files: dict[str, str]) -> list[tuple[str, str, str]]:
    """Check a model that runs its blocks by an imported function; return codes, applicability and messages."""
    tree(root, {FILE: f"{imported}\n{model(loop, imports='')}", **files})
    return [(f.code, f.applicability.value, f.message) for f in check([root], jobs=1).findings]


@pytest.mark.parametrize("name", HELPER_FILES)
def test_a_helper_of_another_file_is_looked_into(tmp_path: Path, name: str) -> None:
    assert of_helper(tmp_path, *HELPER_FILES[name]) == []


@pytest.mark.parametrize("text", [RUNS.format("print"), "def run_block(block, *args):\n    return block(*args)\n"])
def test_a_helper_of_another_file_that_checkpoints_nothing(tmp_path: Path, text: str) -> None:
    (found,) = of_helper(tmp_path, "from .utils import run_block", NEUTRAL, {UTILS: text})
    assert found[:2] == ("CKPT001", "unsafe")
    assert "nothing here checkpoints it" in found[2]


UNKNOWN_FILES = {
    "a function that is not at hand": ("from .elsewhere import run_block", NEUTRAL, {}),
    "one of another package": ("from accelerated.blocks import run_block", NEUTRAL, {}),
    "one that hands it on": (
        "from .utils import run_block",
        NEUTRAL,
        {UTILS: f"from elsewhere import inner\n\n\n{RUNS.format('inner')}"},
    ),
    "one of two ways": (
        "from .elsewhere import run_block",
        f"""\
        for layer in self.layers:
            if self.fast:
                hidden_states = run_block(layer, hidden_states)
            else:
                hidden_states = {CALL}
""",
        {},
    ),
}


@pytest.mark.parametrize("name", UNKNOWN_FILES)
def test_of_a_helper_that_is_not_at_hand_nothing_is_claimed(tmp_path: Path, name: str) -> None:
    found = of_helper(tmp_path, *UNKNOWN_FILES[name])
    assert [kind[:2] for kind in found] == [("CKPT001", "unknown")]
    assert "never" not in found[0][2]
    assert "whether that checkpoints it is not known" in found[0][2]
    apply([tmp_path], unsafe=True, jobs=1)
    assert "class FooLayer(nn.Module)" in (tmp_path / FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "call", ["dump(layer)", "isinstance(layer, dump)", "print(layer, hidden_states)", "copy(layer, 2)"]
)
def test_a_function_that_runs_nothing_is_no_helper(tmp_path: Path, call: str) -> None:
    loop = LOOP.replace("            hidden", f"            {call}\n            hidden", 1)
    found = of_helper(tmp_path, "from .elsewhere import dump\nfrom copy import copy", loop, {})
    assert [kind[:2] for kind in found] == [("CKPT001", "safe")]


def test_a_method_that_hands_on_its_own_argument_is_no_branch(tmp_path: Path) -> None:
    helper = "    def run(self, layer, x):\n        return checkpoint(layer, x, use_reentrant=False)\n\n"
    model = MODEL.replace(CALL, "self.run(layer, hidden_states)").replace(FORWARD, helper + FORWARD, 1)
    text = f"{IMPORTS}{HEAD}{LAYER}{model}"
    assert check(tree(tmp_path, {FILE: text}), cache=False).findings == ()
