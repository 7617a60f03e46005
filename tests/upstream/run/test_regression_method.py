"""Our own test: its text and imports, in files like upstream's, formatted as upstream's ruff would."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ckpt_surgery.upstream.run.regression_method import method, model_tests, with_method
from tests.upstream.regression_toys import TEST_TEXT

OLD = "class PreTrainedModel:\n    def gradient_checkpointing_enable(self):\n        pass\n"
NEW = OLD + "\n    def activation_checkpointing_enable(self):\n        pass\n"
TORCH_BLOCK = """\
if is_torch_available():
    import torch

    from transformers.models.elm.modeling_elm import ElmConfig, ElmModel
"""
WITH_LAYER = """\
if is_torch_available():
    import torch

    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.models.elm.modeling_elm import ElmConfig, ElmModel
"""
LONG = "L" + "o" * 39 + "ng"
TEXT = method(["ElmLayer"], ["non_reentrant", "reentrant"], OLD)


def ruff(*arguments: str, source: str) -> str:
    """Run ruff on a test file with upstream's settings for one; return what it says."""
    settings = ("--isolated", "--line-length=119", "--stdin-filename=tests/models/elm/test_modeling_elm.py")
    command = [sys.executable, "-m", "ruff", *arguments, *settings, "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def lint(source: str) -> str:
    """Run ruff's linter with upstream's imports."""
    imports = ("lines-after-imports=2", "known-first-party=['transformers']")
    options = [f"--config=lint.isort.{setting}" for setting in imports]
    return ruff("check", "--select=I,F,E,W", "--ignore=E501", *options, source=source)


@pytest.mark.parametrize("blocks", [[], ["ElmLayer"], [f"ElmLayerWithALongName{number}" for number in range(9)]])
@pytest.mark.parametrize("source", [TEST_TEXT, TEST_TEXT.replace("require_torch, torch_device", "require_torch")])
def test_the_file_is_formatted_and_sorted_as_upstream_does_it(source: str, blocks: list[str]) -> None:
    pytest.importorskip("ruff")
    after = with_method(source, ["ElmModelTest"], method(blocks, ["reentrant"], OLD))
    assert ruff("format", "--diff", source=after) == ""
    assert lint(after) == ""


def test_only_the_method_and_its_imports_are_new() -> None:
    after = with_method(TEST_TEXT, ["ElmModelTest"], TEXT)
    expected = TEST_TEXT.replace(TORCH_BLOCK, WITH_LAYER).replace(
        "torch_device\n\nfrom", "torch_device\nfrom transformers.trainer_utils import set_seed\n\nfrom"
    )
    last = '        self.assertEqual(ElmConfig.model_type, "elm")\n'
    assert after == expected.replace(last, f"{last}\n{TEXT}")


def test_a_name_that_is_imported_is_not_imported_again() -> None:
    once = with_method(TEST_TEXT, ["ElmModelTest"], TEXT)
    assert once.count("import set_seed") == once.count("import GradientCheckpointingLayer") == 1
    top = TEST_TEXT.replace("import is_torch_available", "import is_torch_available, set_seed")
    assert with_method(top, ["ElmModelTest"], TEXT).count("set_seed\n") == 1


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            "if is_torch_available():\n    import torch\n",
            "if is_torch_available():\n    import torch\n\n"
            "    from transformers.modeling_layers import GradientCheckpointingLayer\n",
        ),
        (
            "if is_torch_available():\n    from transformers import ElmModel\n",
            "if is_torch_available():\n    from transformers import ElmModel\n"
            "    from transformers.modeling_layers import GradientCheckpointingLayer\n",
        ),
        (
            "if is_torch_available():\n    from transformers.modeling_layers import (\n        Elm,  # here\n    )\n",
            "        Elm,  # here\n    )\n    from transformers.modeling_layers import GradientCheckpointingLayer\n",
        ),
        (
            f"if is_torch_available():\n    from transformers.modeling_layers import {LONG}, rest\n",
            f"import (\n        GradientCheckpointingLayer,\n        {LONG},\n        rest,\n    )\n",
        ),
        ("", "import is_torch_available\nfrom transformers.modeling_layers import GradientCheckpointingLayer\n"),
    ],
    ids=["torch alone", "models alone", "comments stay", "gets too long", "no such block"],
)
def test_the_layer_is_imported_where_torch_is_known_to_be_there(block: str, expected: str) -> None:
    assert expected in with_method(TEST_TEXT.replace(TORCH_BLOCK, block), [], TEXT)


def test_the_modes_are_those_it_is_given() -> None:
    assert "for use_reentrant in (False, True):" in TEXT
    assert "for use_reentrant in (True,):" in method([], ["reentrant"], OLD)
    assert "for use_reentrant in (False,):" in method([], ["non_reentrant"], OLD)


def test_plain_blocks_are_named_and_nothing_is_where_there_are_none() -> None:
    assert 'plain_blocks = {"ElmLayer"}' in TEXT
    assert "plain_blocks" not in method([], ["reentrant"], OLD)


def test_checkpointing_is_switched_on_by_the_name_that_the_checkout_has() -> None:
    assert "model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=" in TEXT
    new = method([], ["reentrant"], NEW)
    assert "model.activation_checkpointing_enable(activation_checkpointing_kwargs=" in new
    assert "model.gradient_checkpointing_enable" not in new


def test_the_classes_with_the_generic_tests_are_found() -> None:
    source = TEST_TEXT + "\n\nclass ElmBigModelTest(ElmModelTest):\n    pass\n"
    source += "\n\nclass ElmLMTest(common.CausalLMModelTest, unittest.TestCase):\n    pass\n"
    assert model_tests(source) == ("ElmModelTest", "ElmBigModelTest", "ElmLMTest")
    assert model_tests(TEST_TEXT.replace("ModelTesterMixin", "Other")) == ()
