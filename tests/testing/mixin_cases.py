"""Test classes shaped like transformers' suites, with our mixin in front: healthy and broken models.

`test_tester_mixin` runs them, under pytest and under unittest. Transformers ships its mixin with no release, so
`ModelTesterMixin` here is a fake, whose tests of the same names must never run.
"""

from __future__ import annotations

import copy
import unittest
from typing import Any

import torch
import transformers

from ckpt_surgery.testing.tester_mixin import GradientCheckpointingTesterMixin
from tests.measure import toys


class ModelTesterMixin:
    """The parts of transformers' mixin that ours relies on, and the three tests that ours replaces."""

    all_model_classes: Any = ()

    def _prepare_for_class(self, inputs_dict: Any, model_class: Any, return_labels: bool = False) -> Any:
        inputs = copy.deepcopy(inputs_dict)
        if return_labels and model_class.__name__.endswith("ForCausalLM"):
            inputs["labels"] = inputs["input_ids"].clone()
        return inputs

    def test_training_gradient_checkpointing(self) -> None:
        raise NotImplementedError("the test of transformers ran")

    test_training_gradient_checkpointing_use_reentrant_true = test_training_gradient_checkpointing
    test_training_gradient_checkpointing_use_reentrant_false = test_training_gradient_checkpointing


class LlamaModelTester:
    def __init__(self, parent: unittest.TestCase, is_training: bool = True) -> None:
        self.parent = parent
        self.is_training = is_training

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        config = transformers.LlamaConfig(
            vocab_size=20,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            attention_dropout=0.1,
        )
        ids = torch.arange(14).reshape(2, 7)
        return config, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class ToyModelTester:
    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        return transformers.PretrainedConfig(), {"values": torch.ones(toys.BATCH, toys.WIDTH)}


class HealthyToy(toys.Model):
    def __init__(self, config: Any) -> None:
        super().__init__(toys.Layer(), toys.Layer())


class NeverCheckpointed(toys.Model):
    def __init__(self, config: Any) -> None:
        super().__init__(toys.PlainLayer(), toys.PlainLayer())


class ByKeyword(toys.ResidualByKeyword):
    """A model that crashes in reentrant mode."""

    def __init__(self, config: Any) -> None:
        super().__init__(toys.TwoStreamLayer(), toys.TwoStreamLayer())


class Unsupported(NeverCheckpointed):
    supports_gradient_checkpointing = False


class LlamaTest(GradientCheckpointingTesterMixin, ModelTesterMixin, unittest.TestCase):
    all_model_classes: Any = (transformers.LlamaModel, transformers.LlamaForCausalLM)

    def setUp(self) -> None:
        self.model_tester = LlamaModelTester(self)


class NotTrainingTest(LlamaTest):
    def setUp(self) -> None:
        self.model_tester = LlamaModelTester(self, is_training=False)


class ToyTest(GradientCheckpointingTesterMixin, ModelTesterMixin, unittest.TestCase):
    all_model_classes: Any = (Unsupported, HealthyToy)

    def setUp(self) -> None:
        self.model_tester = ToyModelTester()


class UnsupportedTest(ToyTest):
    all_model_classes: Any = (Unsupported,)


class NeverCheckpointedTest(ToyTest):
    all_model_classes: Any = (NeverCheckpointed, HealthyToy, NeverCheckpointed)


class ByKeywordTest(ToyTest):
    all_model_classes: Any = (Unsupported, ByKeyword)
