"""Two small trees like a transformers checkout before and after a repair, for real pytest runs.

The package in `src/transformers` has what upstream's tests import and nothing more; the models need torch. For the
flow of `regression`, `Scripted` replaces the interpreter and gives each run of pytest a scripted answer.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckpt_surgery.upstream.evidence.results import CommandRun
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter

COMMON = "tests/test_modeling_common.py"
ELM = "tests/models/elm/test_modeling_elm.py"
MODEL = "src/transformers/models/elm/modeling_elm.py"

COMMON_TEXT = """\
import unittest

from transformers.modeling_layers import GradientCheckpointingLayer


class ModelTesterMixin:
    all_model_classes = ()

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        return dict(inputs_dict)

    def test_forward(self):
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_model_classes:
            model_class(config)(**inputs)

    def test_gradient_checkpointing_enable_disable(self):
        config, _ = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_model_classes:
            model = model_class(config)
            self.assertIn(GradientCheckpointingLayer, {base for m in model.modules() for base in type(m).__mro__})
            model.gradient_checkpointing_enable()
            self.assertIs(model.is_gradient_checkpointing, True)
"""
TEST_TEXT = """\
import unittest

import pytest

from transformers import is_torch_available
from transformers.testing_utils import require_torch, torch_device

from ...test_modeling_common import ModelTesterMixin


if is_torch_available():
    import torch

    from transformers.models.elm.modeling_elm import ElmConfig, ElmModel


class ElmModelTester:
    def prepare_config_and_inputs_for_common(self):
        torch.manual_seed(0)
        return ElmConfig(), {"states": torch.randn(2, 3, 8, device=torch_device)}


@require_torch
class ElmModelTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (ElmModel,) if is_torch_available() else ()

    def setUp(self):
        self.model_tester = ElmModelTester()

    # It has no loss.
    @pytest.mark.xfail(reason="not a block of this class")
    def test_gradient_checkpointing_enable_disable(self):
        super().test_gradient_checkpointing_enable_disable()

    def test_config(self):
        self.assertEqual(ElmConfig.model_type, "elm")


class ElmIntegrationTest(unittest.TestCase):
    def test_nothing(self):
        pass
"""
EXCUSED = """\
    # It has no loss.
    @pytest.mark.xfail(reason="not a block of this class")
    def test_gradient_checkpointing_enable_disable(self):
        super().test_gradient_checkpointing_enable_disable()

"""
"""The part of `TEST_TEXT` that keeps a generic test from elm."""
MODELING_TEXT = """\
import torch
from torch import nn

from ...modeling_layers import GradientCheckpointingLayer
from ...modeling_utils import PreTrainedModel


class ElmConfig:
    model_type = "elm"


class ElmLayer(GradientCheckpointingLayer):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.side = nn.Linear(8, 8)

    def forward(self, states, bias=None):
        return states + torch.tanh(self.linear(states) + bias), self.side(states)


class ElmModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Linear(8, 8)
        self.layers = nn.ModuleList([ElmLayer() for _ in range(2)])
        self.bias = nn.Linear(8, 8)

    def forward(self, states):
        bias = self.bias(states)
        states = total = self.embedding(states)
        for layer in self.layers:
            states, side = layer(states, bias)
            total = total + side
        return Output(states + total)


class Output(tuple):
    def __new__(cls, states):
        return super().__new__(cls, (states,))
"""
Damage = Sequence[tuple[str, str]]
"""Parts of the model, and what they were before the repair."""
PLAIN: Damage = [("class ElmLayer(GradientCheckpointingLayer):", "class ElmLayer(nn.Module):")]
"""No block at all."""
KEYWORD: Damage = [("layer(states, bias)", "layer(states, bias=bias)")]
"""With `use_reentrant=True`, the backward raises."""
NESTED: Damage = [(", self.side(states)", ", [self.side(states)]"), ("total + side", "total + side[0]")]
"""With `use_reentrant=True`, gradients are lost."""
FORGETFUL: Damage = [("(states) + bias)", "(states) + bias) * (1 if torch.is_grad_enabled() else 2)")]
"""With `use_reentrant=True`, the recompute differs from the forward: gradients are wrong."""
BATCH_NORM: Damage = [
    ("self.side = nn.Linear(8, 8)", "self.side = nn.Linear(8, 8)\n        self.norm = nn.BatchNorm1d(3)"),
    ("self.linear(states)", "self.linear(self.norm(states))"),
]
"""No damage: the recompute updates the running statistics a second time, and gradients are equal."""

FILES = {
    "src/transformers/__init__.py": "def is_torch_available():\n    return True\n",
    "src/transformers/testing_utils.py": 'torch_device = "cpu"\n\n\ndef require_torch(test):\n    return test\n',
    "src/transformers/trainer_utils.py": (
        "import torch\n\n\ndef set_seed(seed):\n    torch.manual_seed(seed)\n"  # numpy and random are not used here
    ),
    "src/transformers/modeling_layers.py": """\
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


class GradientCheckpointingLayer(nn.Module):
    reentrant = None

    def __call__(self, *args, **kwargs):
        forward = partial(super().__call__, **kwargs)
        if self.reentrant is None:
            return forward(*args)
        return checkpoint(forward, *args, use_reentrant=self.reentrant)
""",
    "src/transformers/modeling_utils.py": """\
from torch import nn

from .modeling_layers import GradientCheckpointingLayer


class PreTrainedModel(nn.Module):
    is_gradient_checkpointing = False

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.is_gradient_checkpointing = True
        for module in self.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.reentrant = (gradient_checkpointing_kwargs or {}).get("use_reentrant", False)
""",
    "src/transformers/models/__init__.py": "",
    "src/transformers/models/elm/__init__.py": "",
    "src/transformers/models/elm/configuration_elm.py": 'class ElmConfig:\n    model_type = "elm"\n',
    "tests/__init__.py": "",
    "tests/models/__init__.py": "",
    "tests/models/elm/__init__.py": "",
    COMMON: COMMON_TEXT,
    ELM: TEST_TEXT,
    MODEL: MODELING_TEXT,
}


@dataclass(frozen=True, slots=True)
class Trees:
    """The base with what is to be repaired, and the series with it repaired; both have the same tests."""

    base: Path
    series: Path

    def write(self, path: str, text: str) -> None:
        for tree in (self.base, self.series):
            (tree / path).write_text(text)

    def tests(self, tree: Path) -> dict[str, bytes]:
        """Read everything under `tests` but compiled files."""
        paths = sorted((tree / "tests").rglob("*.py"))
        return {path.relative_to(tree).as_posix(): path.read_bytes() for path in paths}


def damaged(damage: Damage) -> str:
    """Return the model's text before its repair."""
    model = MODELING_TEXT
    for after, before in damage:
        assert after in model
        model = model.replace(after, before)
    return model


def make(folder: Path, damage: Damage = (), *, files: Mapping[str, str] | None = None) -> Trees:
    """Write both trees under `folder`: the base with the damaged model, the series with the repaired one."""
    for name, text in (("base", damaged(damage)), ("series", MODELING_TEXT)):
        for path, content in {**FILES, MODEL: text, **(files or {})}.items():
            place = folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
    return Trees(folder / "base", folder / "series")


Answers = Mapping[str, str]
"""The outcome of each test of ELM, as `ElmModelTest::test_forward`."""


@dataclass(frozen=True, slots=True)
class Scripted(PythonInterpreter):
    """An interpreter that answers each run of pytest with `answer` for the tree. `shown` keeps the commands.

    An answer that is a number is an exit code without a report.
    """

    answer: Callable[[Path], Answers | int] = field(default=lambda _: {})
    shown: list[str] = field(default_factory=list)

    def run(
        self,
        arguments: Sequence[str],
        tree: Path,
        *,
        shown: str = "",
        timeout: float = 0,
        extra_path: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> CommandRun:
        """Write the report that pytest would write."""
        self.shown.append(f"{tree.name}: {shown}")
        answer = self.answer(tree)
        if isinstance(answer, int):
            return CommandRun(shown, answer, "E   the end")
        report = next(word.partition("=")[2] for word in arguments if word.startswith("--junitxml="))
        chosen = {name: outcome for name, outcome in answer.items() if "::" in name and _selects(arguments, name)}
        suite = ElementTree.Element("testsuite")
        for name, outcome in chosen.items():
            holder, _, test = name.partition("::")
            module = ELM.removesuffix(".py").replace("/", ".")
            case = ElementTree.SubElement(suite, "testcase", classname=f"{module}.{holder}", name=test)
            if outcome != "passed":
                tag = {"failed": "failure", "error": "error"}.get(outcome, "skipped")
                kind = {"xfailed": "pytest.xfail", "skipped": "pytest.skip"}.get(outcome, "")
                ElementTree.SubElement(case, tag, type=kind, message=f"why {test} {outcome}")
        ElementTree.ElementTree(suite).write(report)
        bad = any(outcome in ("failed", "error") for outcome in chosen.values())
        return CommandRun(shown, 1 if bad else 0 if chosen else 5, f"{len(chosen)} tests")


def _selects(arguments: Sequence[str], name: str) -> bool:
    """Select tests as pytest's ids and `-k` do, for the few forms used here."""
    ids = [word.partition("::")[2] for word in arguments if "::" in word]
    if "-k" in arguments:
        expected = re.split(r" or ", arguments[arguments.index("-k") + 1])
        return any(word in name for word in expected)
    return name in ids if ids else True
