"""Make tiny models without a download: a small configuration, a model with random weights, and inputs that fit.

`tiny_config` shrinks any configuration of transformers, `tiny_inputs` makes arguments for a model's forward, and
`tiny_model` does both and runs one training step to prove that they work. `model_classes` lists the classes.
"""

# ruff: noqa: E402

from __future__ import annotations

from ckpt_surgery.optional import load_runtime

load_runtime("ckpt_surgery.tiny")

from ckpt_surgery.errors import CannotBuild
from ckpt_surgery.tiny.catalog import ModelEntry, model_classes
from ckpt_surgery.tiny.inputs import tiny_inputs
from ckpt_surgery.tiny.model import TinyModel, tiny_model
from ckpt_surgery.tiny.shrink import tiny_config

__all__ = ["CannotBuild", "ModelEntry", "TinyModel", "model_classes", "tiny_config", "tiny_inputs", "tiny_model"]
