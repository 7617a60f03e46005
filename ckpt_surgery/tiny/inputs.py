"""Make keyword arguments for a model's forward, drawn from a seed and tried on the model itself.

`modalities`, `placeholders`, `labels` and `forms` make the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.errors import BuildStage, CannotBuild, OptionTypeError
from ckpt_surgery.measure.generators import random_state_kept
from ckpt_surgery.measure.restore import model_state_kept
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH
from ckpt_surgery.tiny.arguments import ForwardArguments, on_device
from ckpt_surgery.tiny.catalog import model_classes
from ckpt_surgery.tiny.labels import label_candidates
from ckpt_surgery.tiny.modalities import candidates
from ckpt_surgery.tiny.placeholders import PLACEHOLDERS, place_tokens

_MOST_TRIES = 16  # of candidates
_MOST_REPAIRS = 3  # of one candidate


def tiny_inputs(
    model: Any, *, batch: int = 2, length: int = 16, seed: int = 0, padding: bool = True
) -> dict[str, Any]:
    """Make keyword arguments with which a model's forward runs in training mode, with a loss if it computes one.

    The forward runs a few times; the model and the random number generators are left as they were.

    Args:
        model: A model of transformers.
        batch: The number of samples.
        length: Tokens per sample. Images, audio and series have the sizes in the configuration, and the text holds as
            many image tokens as the vision part makes features.
        seed: The same seed gives the same tensors.
        padding: Whether to mask out a quarter of the last sample in every mask, if the model accepts that.

    Returns:
        The arguments. Tensors are on the device of the model's first parameter; floats have its dtype and require no
        gradient.

    Raises:
        CannotBuild: The forward accepts none of the candidates.
        OptionTypeError: `model` is not a model of transformers.
    """
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise OptionTypeError(f"the model is of type {type(model).__name__}: give a model of transformers")
    with model_state_kept(model):
        model.train()
        values = accepted_inputs(model, batch=batch, length=length, seed=seed)
        masked = padded(values) if padding else values
        if all(masked[name] is value for name, value in values.items()):
            return values
        try:
            loss = _loss(model, masked)
        except Exception:  # for example, features of a masked image no longer fit their placeholders
            return values
        return values if loss is not None and not bool(torch.isfinite(loss).all()) else masked


def accepted_inputs(model: Any, *, batch: int, length: int, seed: int = 0) -> dict[str, Any]:
    """Return the first arguments that the forward of `model` accepts; the model is left as its forward leaves it.

    Raises:
        CannotBuild: The forward accepts none of the candidates.
    """
    entry = model_classes().get(type(model).__name__)
    heads = entry.heads if entry else ()
    first_error: Exception | None = None
    tries = 0
    for arguments in candidates(model, batch, length, seed, heads):
        for labels in label_candidates(arguments, heads):
            try:
                return _accepted(model, arguments, labels)
            except Exception as error:  # every model has its own way to refuse
                first_error = first_error or error
            tries += 1
            if tries >= _MOST_TRIES:
                break
    raise CannotBuild(type(model).__name__, BuildStage.FORWARD, first_error or "no inputs known")


def _accepted(model: Any, arguments: ForwardArguments, labels: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with which the forward runs, repaired as its errors ask. Raises the last error otherwise."""
    values = {**arguments.values, **labels}
    if "labels" in labels and "input_ids" in arguments.values and model.config.is_encoder_decoder:
        values.pop("decoder_input_ids", None)
    error: Exception | None = None
    for _ in range(_MOST_REPAIRS):
        values = {name: on_device(value, arguments.device) for name, value in values.items()}
        try:
            loss = _loss(model, values)
        except Exception as raised:  # every model has its own way to refuse
            error = raised
            if not _repaired(arguments, values, str(raised)):
                break
            continue
        if labels and loss is None:
            raise ValueError("there is no loss")
        if labels and loss is not None and not bool(torch.isfinite(loss).all()):
            raise ValueError("the loss is not finite")
        return values
    assert error is not None
    raise error


def _loss(model: Any, values: dict[str, Any]) -> Tensor | None:
    with torch.no_grad(), random_state_kept():
        torch.manual_seed(0)
        output = model(**values)
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) else None


# What models of transformers say if arguments do not fit: nothing else shows it.
_TOKEN_MISMATCH = re.compile(r"tokens:?\s*(?:torch\.Size\()?\[?(\d+)[^\d]+(?:features|embeddings)[^\d]*(\d+)", re.I)
_WANTS_FRAMES = "expected 5, got 4"
_WANTS_SIZE = re.compile(r"height \((\d+)\) doesn't match model \((\d+)\)")
_WANTS_NO_TEXT = "both input_ids and inputs_embeds"


def _repaired(arguments: ForwardArguments, values: dict[str, Any], error: str) -> bool:
    """Change `values` as an error of the forward asks; return False if it asks for nothing known."""
    if "labels" in values and "decoder_input_ids" not in values and "decoder_input_ids" in arguments.values:
        values["decoder_input_ids"] = arguments.values["decoder_input_ids"]  # the class does not shift labels itself
        return True
    pixels = values.get("pixel_values")
    if _WANTS_FRAMES in error and isinstance(pixels, Tensor) and pixels.ndim == 4:
        frames = int(arguments.find("num_frames", default=1)) or 1
        values["pixel_values"] = pixels.unsqueeze(1).repeat(1, frames, 1, 1, 1)
        return True
    if size := _WANTS_SIZE.search(error):
        old, new = int(size[1]), int(size[2])
        images = [n for n, value in values.items() if isinstance(value, Tensor) and value.shape[-2:] == (old, old)]
        for name in images:
            values[name] = arguments.floats((*values[name].shape[:-2], new, new))
        return bool(images)
    if _WANTS_NO_TEXT in error and "input_features" in values:
        return values.pop("input_ids", None) is not None
    if (match := _TOKEN_MISMATCH.search(error)) and "input_ids" in values:
        tokens, features = int(match[1]), int(match[2])
        for name in PLACEHOLDERS:
            token = arguments.find(name)
            if isinstance(token, int) and int((values["input_ids"] == token).sum()) == tokens and features != tokens:
                place_tokens(arguments, values, token, features // arguments.batch)
                return True
    if CACHE_SWITCH not in arguments.names or CACHE_SWITCH in values:
        return False
    values[CACHE_SWITCH] = False  # training needs no cache, and old code may make one that no longer works
    return True


def padded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Mask out the last quarter of the last row in each mask of ones of shape (batch, positions).

    With masks of ones, a mask that gets lost would go unnoticed.
    """
    result = dict(values)
    for name, value in values.items():
        is_mask = name.endswith("_mask") and isinstance(value, Tensor) and value.dim() == 2
        if is_mask and bool((value == 1).all()) and (padding := value.shape[1] // 4):
            result[name] = value.clone()
            result[name][-1, -padding:] = 0
    return result
