"""Branches that stay: transformers would not switch a layer on there, or the layer class cannot be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.check import check
from tests.codemods.snippets import INLINE, PLAIN
from tests.codemods.tools import repair, texts, tree

REMOTE, FILE = "remote/modeling_foo.py", "foo/models/foo/modeling_foo.py"
DIRECT = INLINE.replace("self._gradient_checkpointing_func(layer.__call__", "checkpoint(layer").replace(
    "from ...modeling_utils import", "from torch.utils.checkpoint import checkpoint\nfrom transformers import"
)
"""Remote code whose branch calls torch's own function."""
CLAIM = "    supports_gradient_checkpointing = True\n"
START = "        self.layers ="
HELD = """
    def __init__(self, config):
        super().__init__(config)
        self.encoder = FooEncoder(config)
"""
MODEL = "class FooModel(PreTrainedModel):\n"
OLD = "_set_gradient_checkpointing"
PROPERTY = """
    @property
    def gradient_checkpointing(self):
        return self.config.recompute

    def forward(self, hidden_states, attention"""
ENABLE = "\n    def gradient_checkpointing_enable(self):\n        {}\n\n    def forward(self, hidden_states, attention"


def encoder(head: str = "class FooModel(PreTrainedModel):\n" + CLAIM) -> str:
    """Move the stack and its branch into a part of the model."""
    part = DIRECT.replace(MODEL + CLAIM, "class FooEncoder(nn.Module):\n").replace("__init__(config)", "__init__()")
    return f"{part}\n\n{head}{HELD}"


def inline(root: Path, files: dict[str, str]) -> Finding:
    """Return the only finding of CKPT002. If it is information, `apply --unsafe` must leave every file as it is."""
    tree(root, files)
    (finding,) = check([root], select="CKPT002", jobs=1).findings
    if finding.applicability is Applicability.INFO:
        assert repair(root, unsafe=True).changes == ()
    return finding


@pytest.mark.parametrize("text", [DIRECT, encoder()], ids=["a model", "a part of a model"])
def test_a_model_that_transformers_switches_is_repaired(tmp_path: Path, text: str) -> None:
    finding = inline(tmp_path, {REMOTE: text})
    assert finding.applicability is Applicability.INFO, finding.message
    assert finding.message.endswith("it works as it is, and `apply --select CKPT002` puts layers in its place")
    repair(tmp_path, select=("CKPT002",))
    assert "class FooLayer(GradientCheckpointingLayer)" in texts(tmp_path)[REMOTE]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DIRECT.replace(CLAIM, ""), "FooModel does not say `supports_gradient_checkpointing"),
        (DIRECT.replace("checkpointing = True", "checkpointing = False"), "FooModel does not say `supp"),
        (encoder("class FooModel(PreTrainedModel):\n"), "FooModel does not say `supports_gradient_checkpointing"),
        (DIRECT.replace(START, f"        self.gradient_checkpointing = True\n{START}"), "by itself (`self.grad"),
        (
            DIRECT.replace(CLAIM, f"{CLAIM}    gradient_checkpointing = True\n"),
            "itself (`gradient_checkpointing = True`)",
        ),
        (
            DIRECT.replace(START, f"        self.gradient_checkpointing = config.recompute\n{START}"),
            "FooModel switches its checkpointing by itself (`self.gradient_checkpointing = config.recompute`)",
        ),
        (
            DIRECT.replace(START, f"        self._gradient_checkpointing_func = checkpoint\n{START}"),
            "`self._gradient_checkpointing_func = checkpoint`",
        ),
        (
            DIRECT.replace("\n    def forward(self, hidden_states, attention", ENABLE.format("self.on = True"), 2),
            "(`gradient_checkpointing_enable`)",
        ),
        (
            DIRECT.replace("\n    def forward(self, hidden_states, attention", PROPERTY, 2),
            "FooModel switches its checkpointing by itself (`gradient_checkpointing`)",
        ),
        (DIRECT.replace(CLAIM, f"{CLAIM}    {OLD} = switch\n"), f"itself (`{OLD}`)"),
        (f"{DIRECT}\nFooModel.{OLD} = switch\n", f"itself (`{OLD}`)"),
        (
            encoder().rstrip() + "\n        self.encoder.gradient_checkpointing = True\n",
            "FooModel switches its checkpointing by itself (`self.encoder.gradient_checkpointing = True`)",
        ),
        (DIRECT.replace("PreTrainedModel", "Base").replace("transformers", "mine"), "nothing of transformers holds"),
    ],
    ids=[
        "no flag",
        "a flag that is False",
        "a part of a model without the flag",
        "always on",
        "always on by a class attribute",
        "from the configuration",
        "an own function",
        "an own method",
        "a property",
        "a method that is assigned",
        "a method that is assigned below the class",
        "set from outside",
        "another library",
    ],
)
def test_a_branch_that_nothing_of_transformers_switches_stays(tmp_path: Path, text: str, reason: str) -> None:
    finding = inline(tmp_path, {REMOTE: text})
    assert finding.applicability is Applicability.INFO, finding.message
    assert reason in finding.message


def test_branches_that_stay_and_disagree_are_a_fault(tmp_path: Path) -> None:
    finding = inline(tmp_path, {REMOTE: DIRECT.replace(CLAIM, "").replace("attention_mask=attention_mask)", ")")})
    assert finding.applicability is Applicability.UNSAFE
    assert finding.repairs == ()
    assert "`attention_mask`: `attention_mask` under checkpointing, left out otherwise" in finding.message


@pytest.mark.parametrize(
    "text",
    [
        DIRECT.replace(START, f"        self.gradient_checkpointing = False\n{START}"),
        DIRECT.replace(
            "\n    def forward(self, hidden_states, attention",
            ENABLE.format("super().gradient_checkpointing_enable()"),
            2,
        ),
        INLINE.replace(CLAIM, ""),
        INLINE.replace(CLAIM, "").replace("self._gradient_checkpointing_func", "torch.utils.checkpoint.checkpoint"),
        encoder("from transformers import BarForCausalLM\n\n\nclass FooModel(BarForCausalLM):\n"),
        encoder(f"class FooBase(PreTrainedModel):\n{CLAIM}\n\nclass FooModel(FooBase):\n"),
    ],
    ids=[
        "off at first",
        "a method that calls that of transformers",
        "a branch that cannot run",
        "a model in transformers' own tree",
        "a finished model",
        "an inherited flag",
    ],
)
def test_what_is_not_its_own_switch_changes_nothing(tmp_path: Path, text: str) -> None:
    path = REMOTE if "from transformers" in text else "models/foo/modeling_foo.py"
    finding = inline(tmp_path, {path: text})
    assert finding.repairs
    assert "--unsafe" not in finding.message


@pytest.mark.parametrize(
    "text",
    [
        encoder().partition("\n\nclass FooModel")[0] + "\n",
        encoder("import mine\n\n\nclass FooModel(mine.MyPreTrainedModel):\n"),
        encoder().partition("\n\nclass FooModel")[0].replace("FooEncoder(nn.Module)", "FooEncoder(BarStack)")
        + "\n\nfrom transformers.models.bar.modeling_bar import BarStack\n",
    ],
    ids=["nothing holds it", "a base class of another package", "a part of a model of transformers"],
)
def test_a_branch_stays_where_its_model_is_not_at_hand(tmp_path: Path, text: str) -> None:
    finding = inline(tmp_path, {REMOTE: text})
    assert finding.applicability is Applicability.INFO
    said = "no model of transformers that holds FooEncoder and says `supports_gradient_checkpointing = True` is among"
    assert said in finding.message


# -- where the layer class cannot be imported


@pytest.mark.parametrize("requirement", ["transformers==4.48.0", "transformers>=4.41,<5"])
@pytest.mark.parametrize("text", [DIRECT, PLAIN])
def test_a_package_that_asks_for_older_releases_gets_no_layer(tmp_path: Path, text: str, requirement: str) -> None:
    tree(tmp_path, {REMOTE: text.replace("...modeling_utils", "transformers")})
    (tmp_path / "requirements.txt").write_text(f"torch\n{requirement}\n")
    (finding,) = check([tmp_path], jobs=1).findings
    assert (
        f"the package asks for {requirement} (requirements.txt), and GradientCheckpointingLayer came with 4.52"
        in finding.message
    )
    assert finding.code == "CKPT001" or finding.applicability is Applicability.INFO
    assert finding.code == "CKPT002" or finding.applicability is Applicability.UNSAFE
    assert repair(tmp_path, unsafe=True).changes == ()


@pytest.mark.parametrize("beside", ["foo/__init__.py", "foo/modeling_utils.py"])
def test_dots_of_another_package_do_not_lead_to_transformers(tmp_path: Path, beside: str) -> None:
    other = DIRECT.replace("from transformers import PreTrainedModel", "from ...modeling_utils import ModelMixin")
    files = {FILE: other.replace("PreTrainedModel", "ModelMixin"), beside: ""}
    assert inline(tmp_path, files).applicability is Applicability.INFO


def test_a_model_of_transformers_in_another_package_imports_it_by_name(tmp_path: Path) -> None:
    text = DIRECT.replace("import nn\n", "import nn\nfrom ...utils import helper\n", 1)
    inline(tmp_path, {FILE: text, "foo/utils.py": "", "foo/__init__.py": ""})
    repair(tmp_path, select=("CKPT002",))
    assert "from transformers.modeling_layers import" in texts(tmp_path)[FILE]


# -- how the branches are read


@pytest.mark.parametrize(
    ("block", "checkpointed", "direct", "differ"),
    [
        ("x, mask=None", "x, None", "x", False),
        ("x, mask=None", "x, mask", "x", True),
        ("x, mask=None, scale=1", "x, None, 1", "x, scale=1", False),
        ("x, mask=None, scale=1", "x, None, 2", "x", True),
        ("x, mask=None", "x, use_reentrant=False", "x", False),
    ],
)
def test_a_default_that_is_passed_is_no_disagreement(
    tmp_path: Path, block: str, checkpointed: str, direct: str, differ: bool
) -> None:
    text = INLINE.replace("hidden_states, attention_mask=None, past_key_values=None", block, 1)
    text = text.replace("(layer.__call__, hidden_states, attention_mask)", f"(layer.__call__, {checkpointed})")
    text = text.replace("layer(hidden_states=hidden_states, attention_mask=attention_mask)", f"layer({direct})")
    assert ("disagree" in inline(tmp_path, {"models/foo/modeling_foo.py": text}).message) is differ


SEVERAL = """\
            if self.gradient_checkpointing and self.training:
                if attention_mask is None:
                    hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
                else:
                    hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            elif attention_mask is None:
                hidden_states = layer(hidden_states)
            else:
                hidden_states = layer(hidden_states, {})
"""


@pytest.mark.parametrize(("argument", "differ"), [("attention_mask", False), ("other", True)])
def test_a_checkpoint_call_is_compared_with_the_call_most_like_it(tmp_path: Path, argument: str, differ: bool) -> None:
    start, end = INLINE.index("            if self.grad"), INLINE.rindex("        return")
    text = INLINE[:start] + SEVERAL.format(argument) + INLINE[end:]
    assert ("disagree" in inline(tmp_path, {"models/foo/modeling_foo.py": text}).message) is differ


OWN = """
from transformers import LlamaModel


class BarModel(LlamaModel):
    def forward(self, hidden_states):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
"""


TORCHS = OWN.replace("self._gradient_checkpointing_func(layer.__call__,", "checkpoint(layer,").replace(
    "\n\n", "\nfrom torch.utils.checkpoint import checkpoint\n\n", 1
)


@pytest.mark.parametrize(
    ("requirement", "applicability", "said"),
    [
        (">=4.44.2,<6.0.0", Applicability.UNSAFE, "the branch has them run three times a step"),
        (">=4.53", Applicability.UNSAFE, "the branch has them run three times a step"),
        ("==4.41.1", Applicability.INFO, "the branch is right for transformers==4.41.1"),
        (">=5.2", Applicability.INFO, "the direct call alone is right"),
    ],
)
def test_layers_of_transformers_are_nested_only_in_releases_with_them(
    tmp_path: Path, requirement: str, applicability: Applicability, said: str
) -> None:
    finding = inline(tmp_path, {REMOTE: OWN, "remote/requirements.txt": f"transformers{requirement}\n"})
    assert finding.applicability is applicability
    assert said in finding.message
    assert "raise the requirement" not in finding.message


@pytest.mark.parametrize(
    ("mode", "applicability"),
    [
        ("", Applicability.UNSAFE),
        (", use_reentrant=True", Applicability.UNSAFE),
        (", use_reentrant=False", Applicability.INFO),
    ],
)
def test_a_branch_with_its_own_mode_is_idle_only_if_not_reentrant(
    tmp_path: Path, mode: str, applicability: Applicability
) -> None:
    text = TORCHS.replace("(layer, hidden_states)", f"(layer, hidden_states{mode})")
    finding = inline(tmp_path, {REMOTE: text, "remote/requirements.txt": "transformers>=5.2\n"})
    assert finding.applicability is applicability
