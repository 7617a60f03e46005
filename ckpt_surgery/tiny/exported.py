"""The model classes that transformers exports, found in its source: no model is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "BartPretrainedModel",
            "DPRPretrainedContextEncoder",
            "DPRPretrainedQuestionEncoder",
            "DPRPretrainedReader",
            "PretrainedBartModel",
            "PretrainedFSMTModel",
            "Qwen2_5OmniPreTrainedModelForConditionalGeneration",
            "Qwen3OmniMoePreTrainedModelForConditionalGeneration",
        ),
        "a base of other classes, without a forward",
    ),
    **dict.fromkeys(
        ("Apertus1p5VisionTokenizerModel", "ChameleonVQVAE", "Emu3VQVAE", "GlmImageVQVAE", "WavTokenizerEncoderModel"),
        "a codec without a forward, which other classes call by its parts",
    ),
    "JukeboxModel": "a model without a forward, for generation alone",
    "BarkModel": "a model without a forward, for generation alone: BarkSemanticModel and the others train",
    "Qwen2_5OmniForConditionalGeneration": (
        "a model without a forward, for generation alone: Qwen2_5OmniThinkerForConditionalGeneration trains"
    ),
    "Qwen3OmniMoeForConditionalGeneration": (
        "a model without a forward, for generation alone: Qwen3OmniMoeThinkerForConditionalGeneration trains"
    ),
    **dict.fromkeys(
        (
            "Ernie4_5_VL_MoeForConditionalGeneration",
            "Ernie4_5_VL_MoeModel",
            "Ernie4_5_VL_MoeTextModel",
            "Ernie4_5_VL_MoeVisionTransformerPretrainedModel",
        ),
        "an old name of the class without the second underscore",
    ),
    **dict.fromkeys(
        ("EdgeTamVideoModel", "Sam2VideoModel", "Sam3TrackerVideoModel", "Sam3VideoModel"),
        "a forward in inference mode, which records no gradient: the model for images trains",
    ),
    "UVDocBridge": "a part that reads another configuration than the class it names",
}
"""Classes that nobody can train by calling them, each with the reason; `PreTrainedModel` ends the names of more."""

_BASES = re.compile(r"^class (\w+)\(([^)]*)\)", re.MULTILINE)
_BASE_NAME = re.compile(r"PreTrainedModel$")


def exported_models(known: Iterable[str]) -> dict[str, str]:
    """The exported models besides those `known`, by name, with their modules below `transformers`."""
    transformers = import_module("transformers")
    skipped = {*known, *LEFT_OUT}
    root = Path(str(transformers.__file__)).parent
    candidates = {
        name: module
        for name, module in transformers._class_to_module.items()
        if _may_hold_models(module) and name[:1].isupper() and not name.isupper() and name not in skipped
    }
    bases: dict[str, list[str]] = {}
    for module in dict.fromkeys(candidates.values()):
        source = (root / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        bases |= {match[1]: re.findall(r"\w+", match[2]) for match in _BASES.finditer(source)}
    return {
        name: module for name, module in candidates.items() if not _BASE_NAME.search(name) and _is_model(name, bases)
    }


def _may_hold_models(module: str) -> bool:
    folder, _, file = module.rpartition(".")
    torch_file = file.startswith("modeling_") and not file.startswith(("modeling_tf_", "modeling_flax_"))
    return folder.startswith("models.") and torch_file


def _is_model(name: str, bases: Mapping[str, list[str]], inside: tuple[str, ...] = ()) -> bool:
    """Whether one of the bases of a class, or of theirs, is called a pretrained model."""
    return any(
        _BASE_NAME.search(base) or (base not in inside and _is_model(base, bases, (*inside, base)))
        for base in bases.get(name, ())
    )
