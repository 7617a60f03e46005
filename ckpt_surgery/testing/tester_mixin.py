"""A mixin for test classes that derive from transformers' `ModelTesterMixin`."""

from __future__ import annotations

import copy
import unittest
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.generators import random_state_kept
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH, CLAIM
from ckpt_surgery.testing.assertions import assert_checkpointing

if TYPE_CHECKING:
    _Base = unittest.TestCase
else:
    _Base = object  # TestCase comes with the class that this is mixed into

__unittest = True  # leaves the frames of this module out of unittest's tracebacks


class GradientCheckpointingTesterMixin(_Base):
    """Drop-in tests for classes that derive from transformers' `ModelTesterMixin`: put it before that one.

    Its three tests have the names of those they replace, and check every level of `verify` on each class of
    `all_model_classes` that supports checkpointing. They use `model_tester.prepare_config_and_inputs_for_common()`,
    which gives a configuration and inputs, and `_prepare_for_class(inputs, model_class, return_labels=True)` if the
    class has it. They are skipped if no class supports checkpointing or if `model_tester.is_training` is False.
    """

    model_tester: Any
    all_model_classes: Sequence[Any]

    def test_training_gradient_checkpointing(self) -> None:
        """Checkpointing works in the mode that the installed transformers takes by default."""
        self._check_checkpointing(default_mode())

    def test_training_gradient_checkpointing_use_reentrant_true(self) -> None:
        """Checkpointing works with `use_reentrant=True`."""
        self._check_checkpointing("reentrant")

    def test_training_gradient_checkpointing_use_reentrant_false(self) -> None:
        """Checkpointing works with `use_reentrant=False`."""
        self._check_checkpointing("non_reentrant")

    def _check_checkpointing(self, mode: Mode) -> None:
        __tracebackhide__ = True
        if not getattr(self.model_tester, "is_training", True):
            self.skipTest("the model tester has is_training = False")
        supporting = [kind for kind in self.all_model_classes if getattr(kind, CLAIM, False)]
        if not supporting:
            self.skipTest("none of all_model_classes supports gradient checkpointing")
        for model_class in supporting:
            with self.subTest(model_class.__name__):
                config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
                if hasattr(self, "_prepare_for_class"):
                    inputs = self._prepare_for_class(inputs, model_class, return_labels=True)
                assert_checkpointing(_model(model_class, config, inputs), inputs, modes=(mode,))


def default_mode() -> Mode:
    """Return what `gradient_checkpointing_enable()` without arguments chooses: reentrant until transformers 5."""
    return "reentrant" if int(version("transformers").split(".")[0]) < 5 else "non_reentrant"


def _model(model_class: Any, config: Any, inputs: Mapping[str, Any]) -> nn.Module:
    """Build the model in training mode on the device of its inputs, with the same weights in every run."""
    config = copy.deepcopy(config)
    if hasattr(config, CACHE_SWITCH):
        setattr(config, CACHE_SWITCH, False)  # with checkpointing, models switch it off themselves, with a warning
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    with random_state_kept(devices):
        torch.manual_seed(0)
        model: nn.Module = model_class(config)
    device = next((value.device for value in inputs.values() if isinstance(value, Tensor)), torch.device("cpu"))
    return model.to(device).train()
