"""Make labels for a model's loss: candidates by its heads and the signature of its forward, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ckpt_surgery.tiny.arguments import ForwardArguments

_PER_SAMPLE = (
    "SEQUENCE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "MULTIPLE_CHOICE",
    "NEXT_SENTENCE_PREDICTION",
    "AUDIO_XVECTOR",
)
_DETECTION = ("OBJECT_DETECTION", "ZERO_SHOT_OBJECT_DETECTION", "INSTANCE_SEGMENTATION", "IMAGE_SEGMENTATION")


def label_candidates(arguments: ForwardArguments, heads: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield keyword arguments with which the forward may compute a loss, the likeliest first; the last is empty."""
    names = arguments.names
    if "start_positions" in names and "end_positions" in names:
        yield {
            "start_positions": arguments.integers((arguments.batch,), 4),
            "end_positions": arguments.integers((arguments.batch,), 4),
        }
    if "mask_labels" in names and "class_labels" in names:
        height, width = arguments.image()
        masks = [(arguments.floats((2, height, width)) > 0).to(arguments.dtype) for _ in range(arguments.batch)]
        labels = [arguments.integers((2,), arguments.classes()) for _ in range(arguments.batch)]
        yield {"mask_labels": masks, "class_labels": labels}
    if "return_loss" in names and "return_loss" not in arguments.values:
        yield {"return_loss": True}
    if "future_values" in names and "labels" not in names:
        yield {"future_values": arguments.floats((arguments.batch, arguments.horizon()))}
    if "target_values" in names:
        yield {"target_values": arguments.integers((arguments.batch,), int(arguments.find("num_targets", default=2)))}
        yield {"target_values": arguments.floats((arguments.batch, int(arguments.find("num_targets", default=1))))}
    if "bool_masked_pos" in names and "bool_masked_pos" not in arguments.values and "labels" not in names:
        yield {"bool_masked_pos": arguments.alternate_patches()}
    if "sampled_negative_indices" in names and arguments.frames():
        shape = (arguments.batch, arguments.frames())
        negatives = int(arguments.find("num_negatives", default=4))
        yield {
            "mask_time_indices": (torch.arange(shape[1]) % 2 == 0).expand(shape).clone(),
            "sampled_negative_indices": arguments.integers((*shape, negatives), shape[1]),
        }
    if "labels" in names:
        of_pairs = [n for n in ("next_sentence_label", "sentence_order_label") if n in names]
        for value in _labels(arguments, heads):
            yield {"labels": value, **{n: arguments.integers((arguments.batch,), 2) for n in of_pairs}}
    yield {}


def _labels(arguments: ForwardArguments, heads: tuple[str, ...]) -> Iterator[Any]:
    ids = arguments.values.get("decoder_input_ids", arguments.values.get("input_ids"))
    per_sample = arguments.integers((arguments.batch,), arguments.classes())
    if any(head in _DETECTION for head in heads):
        yield _boxes(arguments)
    if "SEMANTIC_SEGMENTATION" in heads:
        yield arguments.integers((arguments.batch, *arguments.image()), arguments.classes())
    if any(head in _PER_SAMPLE for head in heads):
        yield per_sample
    if "VISUAL_QUESTION_ANSWERING" in heads:
        yield torch.nn.functional.one_hot(per_sample, arguments.classes()).to(arguments.dtype)
    if "TOKEN_CLASSIFICATION" in heads and ids is not None:
        yield arguments.integers(tuple(ids.shape), arguments.classes())
    if "TEXT_TO_SPECTROGRAM" in heads:
        yield arguments.floats((arguments.batch, 8, arguments.mels()))
    if "CTC" in heads:
        yield arguments.integers((arguments.batch, 3), arguments.vocabulary() - 2) + 1
    if "AUDIO_FRAME_CLASSIFICATION" in heads and arguments.frames():
        marks = arguments.integers((arguments.batch, arguments.frames()), arguments.classes())
        yield torch.nn.functional.one_hot(marks, arguments.classes()).to(arguments.dtype)
    if ids is not None:
        codebooks = arguments.find("num_codebooks", default=0)
        if codebooks and ids.shape[0] == arguments.batch * codebooks:
            yield arguments.integers((arguments.batch, ids.shape[1], codebooks), arguments.vocabulary())
        yield ids.clone()
        yield per_sample
        yield arguments.integers(tuple(ids.shape), arguments.classes())
        yield arguments.integers((arguments.batch, 4), arguments.vocabulary())
    else:
        yield arguments.integers((arguments.batch, 4), arguments.vocabulary())
        yield per_sample
        yield arguments.integers((arguments.batch, *arguments.image()), arguments.classes())
        yield _boxes(arguments)


def _boxes(arguments: ForwardArguments) -> list[dict[str, torch.Tensor]]:
    height, width = arguments.image()
    boxes = torch.tensor([[0.4, 0.4, 0.3, 0.3], [0.6, 0.5, 0.2, 0.4]], dtype=arguments.dtype)
    return [
        {
            "class_labels": arguments.integers((2,), arguments.classes()),
            "boxes": boxes.clone(),
            "masks": (arguments.floats((2, height, width)) > 0).to(arguments.dtype),
        }
        for _ in range(arguments.batch)
    ]
