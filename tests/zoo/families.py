"""Tiny models of families that checkpointing breaks, and of some that it does not, with their known faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import transformers
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ckpt_surgery.measure.compare import Floor, Verdict, compare, noise_floors
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import Level, Mode
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from ckpt_surgery.tiny import model_classes, tiny_model

RELEASE = int(transformers.__version__.partition(".")[0])
RATE = 0.3
SEED = 3
BATCH, LENGTH, WIDTH, VOCABULARY = 2, 16, 32, 64

Made = tuple[nn.Module, dict[str, Any]]
Known = Mapping[Mode, Level]
"""Faults without a repair: a level by mode of checkpointing, without the sound modes."""

_EVERY_LAYER_RUNS = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}


def both(level: Level) -> Known:
    return {"non_reentrant": level, "reentrant": level}


def reentrant(level: Level) -> Known:
    return {"reentrant": level}


@dataclass(frozen=True)
class Family:
    """A class of transformers and its faults `in_4` (4.57.6) and `in_5` (5.23.0), None where it does not exist.

    `options` are set on the tiny configuration; `make` replaces the tiny machinery; `more` makes inputs
    on top. `drops` tells whether anything in its blocks can drop at random.
    """

    name: str
    in_4: Known | None = field(default_factory=dict)
    in_5: Known | None = field(default_factory=dict)
    variant: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[], Made] | None = None
    more: Callable[[Any], Mapping[str, Any]] | None = None
    drops: bool = True

    def __str__(self) -> str:
        return f"{self.name}, {self.variant}" if self.variant else self.name

    @property
    def known(self) -> Known | None:
        return self.in_4 if RELEASE == 4 else self.in_5

    def built(self) -> Made:
        """Build a model in training mode, and its inputs."""
        model, inputs = self._tiny() if self.make is None else self.make()
        return model.train(), {**inputs, **(self.more(model) if self.more else {})}

    def _tiny(self) -> Made:
        entry = model_classes().get(self.name)
        kind: Any = entry.load() if entry else getattr(transformers, self.name)
        tiny = tiny_model(kind, options={**_EVERY_LAYER_RUNS, **self.options})
        return tiny.model, tiny.inputs


class Subject:
    """A family's model, and its runs beside one without checkpointing and without a repair."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.model, self.inputs = family.built()
        self.blocks = {block.name: block.module for block in find_blocks(self.model, unsupported=True)}
        self.rates = (0.0, RATE) if family.drops else (0.0,)
        self._rate = 0.0
        self._references = {rate: self._reference(rate) for rate in self.rates}
        self._floors: dict[float, Mapping[str, Floor]] = {}

    def drop(self, rate: float) -> None:
        """Set the dropout rate of everything in the model that draws; whole layers are not dropped."""
        for module in self.model.modules():
            if isinstance(module, _DropoutNd):
                module.p = rate
            for name, value in vars(module).items():
                if "drop" in name and "layerdrop" not in name and isinstance(value, float):
                    setattr(module, name, rate)
        self._rate = rate

    @property
    def reference(self) -> RunRecord:
        """The run to compare with at the present rate."""
        return self._references[self._rate]

    def run(self, mode: Mode | None, *, rounding_seed: int = 0) -> RunRecord:
        """Take a step with checkpointing switched on in this mode by transformers' own method."""
        return run_step(
            self.model,
            self.inputs,
            blocks=self.blocks,
            checkpointing=mode,
            seed=SEED,
            rounding_seed=rounding_seed,
        )

    def run_as_released(self, mode: Mode) -> RunRecord:
        """Take a step without a repair, even of a model that claims no support."""
        before = dict(vars(self.model))
        vars(self.model)["supports_gradient_checkpointing"] = True
        try:
            return self.run(mode)
        finally:
            vars(self.model).clear()
            vars(self.model).update(before)

    def judged(self, run: RunRecord) -> Verdict:
        """Compare a run with the reference; hold suspects against what another order of sums changes."""
        strict = compare(self.reference, run, floors={})
        if not (strict.lost or strict.gained or strict.wrong):
            return strict
        if self._rate not in self._floors:
            repeated = [self.run(None, rounding_seed=number) for number in (1, 2)]
            assert not any(other.error for other in repeated)
            self._floors[self._rate] = noise_floors(self.reference, *repeated)
        return compare(self.reference, run, floors=self._floors[self._rate])

    def _reference(self, rate: float) -> RunRecord:
        self.drop(rate)
        return self.run(None)


def _tokens() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(SEED))


def _random(kind: Any, config: Any) -> nn.Module:
    torch.manual_seed(SEED)
    return cast(nn.Module, kind(config))


def _dbrx() -> Made:
    # in 4.57.6 its configuration does not survive being read back, so that nothing can shrink it
    config = transformers.DbrxConfig(
        d_model=WIDTH,
        n_heads=4,
        n_layers=2,
        max_seq_len=64,
        vocab_size=VOCABULARY,
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        ffn_config={"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        output_router_logits=True,
    )
    return _random(transformers.DbrxForCausalLM, config), {"input_ids": _tokens(), "labels": _tokens()}


def _pop2piano() -> Made:
    # its encoder takes features of the model's own width, which 4.57.6 does not tell from its configuration
    config = transformers.Pop2PianoConfig(
        d_model=WIDTH,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        vocab_size=VOCABULARY,
        composer_vocab_size=4,
        decoder_start_token_id=0,
    )
    features = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(SEED))
    model = _random(transformers.Pop2PianoForConditionalGeneration, config)
    return model, {"input_features": features, "labels": _tokens()}


def _with_cache(model: Any) -> Mapping[str, Any]:
    return {"use_cache": True}


def _given_cache(model: Any) -> Mapping[str, Any]:
    if RELEASE == 4:  # keeps one on its modules instead, with which the keys get no gradient at all
        return {"use_cache": False}
    return {"past_key_values": transformers.DynamicCache(config=model.config)}


_ROUTER = {"output_router_logits": True}
FAMILIES = (
    Family("GPTBigCodeForCausalLM", in_4=both("recompute")),
    Family("xLSTMForCausalLM", drops=False),
    Family("ZambaForCausalLM", in_5=reentrant("recompute")),
    Family("Zamba2ForCausalLM", in_5=reentrant("recompute")),
    Family("SwiftFormerForImageClassification", in_4=both("recompute"), in_5=both("state")),
    Family("ClvpEncoder", in_5=both("recompute")),
    Family("ClvpDecoder", in_5=both("recompute")),
    Family("LlamaForCausalLM"),
    Family("MixtralForCausalLM", reentrant("values"), reentrant("values"), "router loss", _ROUTER),
    Family("Gemma3nTextModel", in_5=reentrant("values")),
    Family("Gemma4TextModel", in_4=None, in_5=reentrant("values")),
    Family("MllamaVisionModel", both("recompute"), both("recompute"), drops=False),
    Family("Llama4VisionModel", reentrant("set"), reentrant("set")),
    Family("PvtV2ForImageClassification", reentrant("set"), reentrant("set")),
    Family("SwinModel", in_5=both("recompute")),
    Family("WavLMModel", reentrant("run"), reentrant("run")),
    Family("SpeechT5ForSpeechToText", reentrant("run"), reentrant("run")),
    Family("SEWDModel", reentrant("run"), reentrant("run")),
    Family(
        "DebertaV2ForMaskedLM",
        variant="absolute positions",
        options={"relative_attention": False, "norm_rel_ebd": "none"},
    ),
    Family(
        "DebertaV2ForMaskedLM",
        reentrant("run"),
        reentrant("run"),
        "relative attention",
        {"relative_attention": True, "norm_rel_ebd": "layer_norm"},
    ),
    Family("MLCDVisionModel", reentrant("set"), reentrant("run")),
    Family("LiltModel", reentrant("set")),
    Family("Sam2Model", both("recompute"), reentrant("set"), drops=False),
    Family("T5ForConditionalGeneration"),
    Family("WhisperForConditionalGeneration", in_4=reentrant("run")),
    Family("Qwen2VLForConditionalGeneration"),
    Family("MobileViTForImageClassification", both("state"), both("state")),
    Family("RoFormerForCausalLM", {}, both("run"), "use_cache", {"is_decoder": True}, more=_with_cache),
    Family("BertForMultipleChoice"),
    Family("RecurrentGemmaForCausalLM", {"non_reentrant": "run", "reentrant": "loop"}, both("run"), more=_given_cache),
    Family("XmodForMaskedLM"),
    Family("GitModel", in_5=both("run")),
    Family("ImageGPTForCausalImageModeling", in_4=both("run")),
    Family("DbrxForCausalLM", {}, reentrant("values"), "router loss", make=_dbrx),
    Family("Pop2PianoForConditionalGeneration", reentrant("set"), reentrant("set"), make=_pop2piano),
)
