"""Which labels a model's loss takes: a guess by its heads, in an order that tries the likely ones first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ckpt_surgery.tiny.draft import Draft

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


def candidates(draft: Draft, heads: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Keyword arguments that may bring a loss, the likeliest first; the last are none at all."""
    names = draft.names
    if "start_positions" in names and "end_positions" in names:
        yield {
            "start_positions": draft.integers((draft.batch,), 4),
            "end_positions": draft.integers((draft.batch,), 4),
        }
    if "mask_labels" in names and "class_labels" in names:
        yield _masks(draft)
    if "return_loss" in names:
        yield {"return_loss": True}
    if "future_values" in names and "labels" not in names:
        yield {"future_values": draft.floats((draft.batch, draft.horizon()))}
    if "target_values" in names:
        yield {"target_values": draft.integers((draft.batch,), int(draft.find("num_targets", default=2)))}
        yield {"target_values": draft.floats((draft.batch, int(draft.find("num_targets", default=1))))}
    if "bool_masked_pos" in names and "bool_masked_pos" not in draft.values and "labels" not in names:
        yield {"bool_masked_pos": draft.half_of_the_patches()}
    if "sampled_negative_indices" in names and draft.frames():
        yield _contrast(draft)
    if "labels" in names:
        second = [n for n in ("next_sentence_label", "sentence_order_label") if n in names]
        for value in _labels(draft, heads):
            yield {"labels": value, **{n: draft.integers((draft.batch,), 2) for n in second}}
    yield {}


def _labels(draft: Draft, heads: tuple[str, ...]) -> Iterator[Any]:
    ids = draft.values.get("decoder_input_ids", draft.values.get("input_ids"))
    one_each = draft.integers((draft.batch,), draft.classes())
    if any(head in _DETECTION for head in heads):
        yield _boxes(draft)
    if "SEMANTIC_SEGMENTATION" in heads:
        yield draft.integers((draft.batch, *draft.image()), draft.classes())
    if any(head in _PER_SAMPLE for head in heads):
        yield one_each
    if "VISUAL_QUESTION_ANSWERING" in heads:
        yield torch.nn.functional.one_hot(one_each, draft.classes()).to(draft.dtype)
    if "TOKEN_CLASSIFICATION" in heads and ids is not None:
        yield draft.integers(tuple(ids.shape), draft.classes())
    if "TEXT_TO_SPECTROGRAM" in heads:
        yield draft.floats((draft.batch, 8, draft.mels()))
    if "CTC" in heads:
        yield draft.integers((draft.batch, 3), draft.vocabulary() - 2) + 1
    if "AUDIO_FRAME_CLASSIFICATION" in heads and draft.frames():
        marks = draft.integers((draft.batch, draft.frames()), draft.classes())
        yield torch.nn.functional.one_hot(marks, draft.classes()).to(draft.dtype)
    if ids is not None:
        books = draft.find("num_codebooks", default=0)
        if books and ids.shape[0] == draft.batch * books:
            yield draft.integers((draft.batch, ids.shape[1], books), draft.vocabulary())
        yield ids.clone()
        yield one_each
        yield draft.integers(tuple(ids.shape), draft.classes())
        yield draft.integers((draft.batch, 4), draft.vocabulary())
    else:
        yield draft.integers((draft.batch, 4), draft.vocabulary())
        yield one_each
        yield draft.integers((draft.batch, *draft.image()), draft.classes())
        yield _boxes(draft)


def _contrast(draft: Draft) -> dict[str, Any]:
    """Masked steps of a waveform and what they are told apart from."""
    shape = (draft.batch, draft.frames())
    negatives = int(draft.find("num_negatives", default=4))
    return {
        "mask_time_indices": (torch.arange(shape[1]) % 2 == 0).expand(shape).clone(),
        "sampled_negative_indices": draft.integers((*shape, negatives), shape[1]),
    }


def _boxes(draft: Draft) -> list[dict[str, torch.Tensor]]:
    height, width = draft.image()
    boxes = torch.tensor([[0.4, 0.4, 0.3, 0.3], [0.6, 0.5, 0.2, 0.4]], dtype=draft.dtype)
    return [
        {
            "class_labels": draft.integers((2,), draft.classes()),
            "boxes": boxes.clone(),
            "masks": (draft.floats((2, height, width)) > 0).to(draft.dtype),
        }
        for _ in range(draft.batch)
    ]


def _masks(draft: Draft) -> dict[str, Any]:
    height, width = draft.image()
    masks = [(draft.floats((2, height, width)) > 0).to(draft.dtype) for _ in range(draft.batch)]
    return {
        "mask_labels": masks,
        "class_labels": [draft.integers((2,), draft.classes()) for _ in range(draft.batch)],
    }
