"""Build the model that a name stands for at its released size, without data, and the arguments of a training step.

The settings are those that people train with: no cache, no dropped layers, experts as grouped products if the release
has them, and attention as CUDA runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

try:
    from transformers.initialization import no_init_weights
except ImportError:  # before 5.0
    from transformers.modeling_utils import no_init_weights

from ckpt_surgery.errors import BuildStage, CannotBuild, CkptSurgeryError, NotOnShapes, PlanningError
from ckpt_surgery.long_sequences.long_context import long_context
from ckpt_surgery.measure.arguments import checked_inputs
from ckpt_surgery.measure.generators import random_state_kept, seed_all
from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH
from ckpt_surgery.planning.allocations import StepAllocations
from ckpt_surgery.planning.cuda_operators import CudaOperators
from ckpt_surgery.planning.explain import explanation_of, metered, not_logged, not_on_shapes, without_values
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.plan import Plan, plan_on_shapes
from ckpt_surgery.planning.shapes import ShapesOnly, ValuesForNumpy, shapes_of
from ckpt_surgery.planning.training import ALONE, TrainingSetup
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.survey.build import class_and_config, from_factory
from ckpt_surgery.survey.target import SurveyTarget, TargetKind
from ckpt_surgery.text import error_line
from ckpt_surgery.tiny.arguments import ForwardArguments
from ckpt_surgery.tiny.catalog import model_classes
from ckpt_surgery.tiny.configs import all_configs, name_dtype, nested_configs, text_config
from ckpt_surgery.tiny.inputs import accepted_inputs
from ckpt_surgery.tiny.shrink import default_config, fill_open_fields

DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TOKENS = 2048
"""Default sequence length, in tokens."""
_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "max_target_positions")
_HEADS = (
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "CAUSAL_LM",
    "PRETRAINING",
    "CTC",
    "IMAGE_CLASSIFICATION",
    "OBJECT_DETECTION",
    "MODEL",
)
"""A model type named alone stands for its class with the first of these heads."""
_BEYOND_TEXT = ("pixel_values", "input_features", "input_values", "decoder_input_ids", "bbox")
"""Arguments that only models which take more than text have."""
_VOCABULARY = 32_000
"""The vocabulary size if a configuration class leaves it to each checkpoint."""
_DROPPED_LAYERS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "speech_encoder_layerdrop")


@dataclass(frozen=True, slots=True)
class ReleasedModel:
    """A model that holds no data, in training mode, and the arguments of its forward.

    `shapes` is the mode that both belong to. `tokens` is the length of the text, 0 if the model takes none.
    `attention` names the implementation that the model chose. `defaults` names the configuration class whose defaults
    decide its size, if they do, and `changed` the fields that were changed because these do not fit together. With
    `has_own_inputs` a factory returned the inputs, too.
    """

    model: nn.Module
    inputs: Mapping[str, Any]
    shapes: ShapesOnly
    tokens: int
    attention: str
    changed: tuple[str, ...] = ()
    defaults: str = ""
    has_own_inputs: bool = False

    def resized(self, batch: int, tokens: int) -> ReleasedModel:
        """Return the same model with inputs of another size. Raises PlanningError."""
        with random_state_kept():
            seed_all(0)
            length = tokens or _length(self.model, None, TOKENS)
            return replace(self, inputs=_inputs_of(self.model, self.shapes, batch, length), tokens=tokens)

    def explained(self, training: TrainingSetup = ALONE) -> Explanation:
        """Explain a step of the model as it stands now. Raises PlanningError."""
        with random_state_kept(), CudaOperators():
            step, drawn = metered(self.model, self.inputs, self.shapes)
        return replace(explanation_of(self.model, step, drawn, training), assumptions=self.assumptions)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures assume that the configuration does not say, a sentence each."""
        said = []
        if self.defaults:
            count = sum(parameter.numel() for parameter in self.model.parameters())
            said.append(
                f"Its size is that of the defaults of {self.defaults}, {count / 10**9:.3g} billion parameters: for "
                "another, give a model on the Hub or a config.json."
            )
        if self.changed:
            said.append(f"The defaults of its configuration do not fit together; changed: {', '.join(self.changed)}.")
        return tuple(said)

    def planned(
        self,
        memory: int,
        *,
        training: TrainingSetup,
        offload: bool,
        changes: bool,
        save: bool = True,
        begin: Callable[[int], None] | None = None,
    ) -> Plan:
        """Plan a step within `memory` bytes. Raises PlanningError and SurgeryError.

        `begin` is called with the number of each step before it is metered.
        """
        numbers = count(1)

        def step(model: nn.Module) -> tuple[StepAllocations, int]:
            if begin is not None:
                begin(next(numbers))
            with random_state_kept(), CudaOperators():
                return metered(model, self.inputs, self.shapes)

        return plan_on_shapes(
            self.model, self.shapes, step, memory, training=training, offload=offload, changes=changes, save=save
        )

    def wrap(
        self,
        *,
        offload: bool = False,
        save: Sequence[str] = (),
        for_long_context: bool = False,
        host: bool = False,
    ) -> None:
        """Checkpoint every block; `offload` and `save` are as in `wrap_blocks`.

        With `for_long_context`, do all that `long_context` does instead, with its option `host`. Raises SurgeryError.
        """
        if for_long_context:
            long_context(self.model, host=host)
        else:
            wrap_blocks(self.model, offload="cpu" if offload else None, self_check="never", save=save or None)
        without_values(self.model)

    @classmethod
    def of(
        cls, target: SurveyTarget, *, tokens: int | None, batch: int, dtype: torch.dtype, most_tokens: int = TOKENS
    ) -> ReleasedModel:
        """Build a target's model at its released size, and inputs of `batch` samples of `tokens` tokens.

        Without `tokens`, samples have `most_tokens`, or as many as the model has positions for, if those are fewer.
        Images, audio and series have the sizes in the configuration. If the defaults of a configuration class do not
        fit together, `fit_parts` changes them. A factory is called where tensors hold no data; the model and inputs
        that it returns are used as they are.

        Raises:
            PlanningError: the model cannot be built or run on shapes, or has fewer positions than `tokens`.
            TargetError: the target cannot be used.
            CannotBuild: the class cannot be imported.
        """
        with random_state_kept():
            try:
                return _released(target, tokens, batch, dtype, most_tokens, fit=False)
            except PlanningError:
                with suppress(PlanningError):
                    return _released(target, tokens, batch, dtype, most_tokens, fit=True)
                raise

    @classmethod
    def without_inputs(cls, target: SurveyTarget, *, tokens: int | None, dtype: torch.dtype) -> ReleasedModel:
        """Build a target's model without inputs: none that run on shapes are known. Raises PlanningError like `of`."""
        shapes = ShapesOnly()
        with random_state_kept():
            seed_all(0)
            built, _ = _from_class(target, shapes, dtype, fit=False)
            model = shapes_of(built, shapes).train()
        return cls(model, {}, shapes, _length(model, tokens, TOKENS), "as a CPU runs it")


def drop_no_layers(holder: object) -> None:
    """Set the rates at which a model drops layers at random, in its configuration or a module of it, to 0."""
    for name in _DROPPED_LAYERS:
        if getattr(holder, name, 0):
            setattr(holder, name, 0.0)


def main_class(targets: Sequence[SurveyTarget]) -> SurveyTarget:
    """Return, of the classes that one name stands for, the one to train: a language model rather than its base."""

    def rank(target: SurveyTarget) -> int:
        entry = model_classes().get(target.model)
        heads = entry.heads if entry else ()
        return next((place for place, head in enumerate(_HEADS) if head in heads), len(_HEADS))

    return min((target for target in targets if not target.variant), key=rank)


def _released(
    target: SurveyTarget, tokens: int | None, batch: int, dtype: torch.dtype, most_tokens: int, *, fit: bool
) -> ReleasedModel:
    shapes = ShapesOnly()
    changed: tuple[str, ...] = ()
    given: Mapping[str, Any] | None = None
    seed_all(0)
    if target.kind is TargetKind.FACTORY:
        model, given = _from_factory(target, shapes, dtype)
    else:
        model, changed = _from_class(target, shapes, dtype, fit=fit)
    model = shapes_of(model, shapes).train()
    attention = str(getattr(getattr(model, "config", None), "_attn_implementation", None) or "its own")
    if given is not None:
        return ReleasedModel(model, given, shapes, 0, attention, has_own_inputs=True)
    length = _length(model, tokens, most_tokens)
    try:
        inputs = _inputs_of(model, shapes, batch, length)
    except PlanningError:
        if tokens is not None:
            raise
        length //= 2  # models that number positions from the padding token on take fewer than they say
        inputs = _inputs_of(model, shapes, batch, length)
    defaults = type(model.config).__name__ if target.kind is TargetKind.CLASS else ""
    return ReleasedModel(model, inputs, shapes, length if "input_ids" in inputs else 0, attention, changed, defaults)


def positions_of(model: Any) -> int | None:
    """Return the most tokens that a text may have by a model's configuration; None if it does not say."""
    config = text_config(model.config)
    return next((n for name in _POSITIONS if isinstance(n := getattr(config, name, None), int) and n > 0), None)


def _from_class(
    target: SurveyTarget, shapes: ShapesOnly, dtype: torch.dtype, *, fit: bool
) -> tuple[nn.Module, tuple[str, ...]]:
    """Build the model of a class as people train it, and name the configuration fields that `fit` changed.

    Raises PlanningError if no such fields are known, or a class refuses.
    """
    model_class, source = class_and_config(target)
    changed: tuple[str, ...] = ()
    what = "configuration"
    try:
        config = default_config(source) if isinstance(source, type) else source
        if fit:
            changed = fit_parts(config) if isinstance(source, type) else ()
            if not changed:
                raise PlanningError(f"no fields are known that make the parts of {target.label} fit")
        fill_open_fields(config, vocabulary=_VOCABULARY)
        for part in all_configs(config):
            if hasattr(part, CACHE_SWITCH):
                setattr(part, CACHE_SWITCH, False)
            drop_no_layers(part)
        what = "constructor"
        name_dtype(config, dtype)
        with _default_dtype(dtype), no_init_weights(), shapes, not_logged():
            model: nn.Module = getattr(model_class, "_from_config", model_class)(config)
        tie: Any = getattr(model, "tie_weights", None)
        if tie is not None:
            tie()
    except Exception as error:  # classes refuse with errors of any kind
        raise not_on_shapes(f"the {what} of {target.label}", error) from error
    return model, changed


def _from_factory(
    target: SurveyTarget, shapes: ShapesOnly, dtype: torch.dtype
) -> tuple[nn.Module, Mapping[str, Any] | None]:
    try:
        with _default_dtype(dtype), shapes, not_logged():
            model, inputs, _ = from_factory(target)
    except CkptSurgeryError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise PlanningError(f"the factory {target.argument} raised {error_line(error)}") from error
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise PlanningError(f"{target.argument} returns an object of type {kind}: it must return a model")
    if inputs is None and not hasattr(getattr(model, "config", None), "__dict__"):
        raise PlanningError(
            f"{target.argument} returns a model without a `config` of attributes: return (model, inputs)"
        )
    return model, None if inputs is None else checked_inputs(inputs)


def _length(model: Any, tokens: int | None, most: int) -> int:
    """Return how many tokens a text has: `tokens`, or what the model takes. Raises PlanningError if that is fewer."""
    arguments = ForwardArguments(model, 1, 1, 0)
    config, positions = text_config(model.config), positions_of(model)
    if tokens is None:
        grid = getattr(config, "axial_pos_shape", None)
        return prod(grid) if grid and getattr(config, "axial_pos_embds", False) else min(most, positions or most)
    if positions is not None and tokens > positions and "input_ids" in arguments.names:
        name = type(model).__name__
        raise PlanningError(
            f"{name} has {positions:,} positions, and {tokens:,} tokens were asked for: give --tokens {positions} or "
            "fewer, or a config.json with more positions"
        )
    return tokens


def _inputs_of(model: Any, shapes: ShapesOnly, batch: int, length: int) -> dict[str, Any]:
    """Make arguments of the forward: text and labels for a language model, else what the forward accepts."""
    entry = model_classes().get(type(model).__name__)
    arguments = ForwardArguments(model, batch, length, 0)
    needs_text = {"input_ids", "labels"} <= arguments.names and arguments.main_input == "input_ids"
    needs_more = arguments.find("num_codebooks") is not None or not arguments.names.isdisjoint(_BEYOND_TEXT)
    if entry and "CAUSAL_LM" in entry.heads and needs_text and not needs_more:
        ids = arguments.tokens((batch, length))
        return {"input_ids": ids, "labels": ids.clone()}
    try:
        with shapes, ValuesForNumpy(), CudaOperators(), not_logged():
            return accepted_inputs(model, batch=batch, length=length)
    except CannotBuild as failure:
        stage = BuildStage.INPUTS.value
        raise NotOnShapes(f"no {stage} are known that {type(model).__name__} accepts: {failure.reason}") from None


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


_TEXT_WIDTHS = ("out_hidden_size", "output_dim", "text_hidden_size")
"""The width of the features that a part passes to the text."""


def fit_parts(config: PretrainedConfig) -> tuple[str, ...]:
    """Change the fields of a default configuration that keep its parts from fitting, and name each with its values."""
    text = text_config(config)
    width = getattr(text, "hidden_size", 0) if text is not config else 0
    changed: list[str] = []
    for path, part in list(_parts(config, "")):
        fields = family_tables().fitted.get(part.model_type)
        if fields is None:
            fields = {n: width for n in _TEXT_WIDTHS if width and type(getattr(part, n, None)) is int}
        changed += _set_fields(part, fields, path)
    return tuple(changed)


def _set_fields(part: Any, fields: Mapping[str, Any], path: str) -> list[str]:
    """Set fields of a part, those inside a dictionary or a configuration one by one, and list the changes."""
    changed: list[str] = []
    for name, new in fields.items():
        old = getattr(part, name, None)
        if isinstance(new, Mapping) and isinstance(old, PretrainedConfig):
            changed += _set_fields(old, new, f"{path}{name}.")
            continue
        value = {**(old or {}), **new} if isinstance(new, Mapping) else new
        if value != old:
            setattr(part, name, value)
            changed.append(f"{path}{name} {old} -> {value}")
    return changed


def _parts(config: PretrainedConfig, path: str) -> Iterator[tuple[str, PretrainedConfig]]:
    """Yield `config` and every configuration inside it, each with the path of names that leads to it."""
    yield path, config
    for name, part in nested_configs(config):
        yield from _parts(part, f"{path}{name}.")
