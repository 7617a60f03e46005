"""What a step of a model will keep: its figures, and their forms as text, json and a page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ckpt_surgery.planning.figures import StepFigures
from ckpt_surgery.planning.page import explanation_page
from ckpt_surgery.planning.text import explanation_lines
from ckpt_surgery.report.html import framed

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Explanation(StepFigures):
    """What a step of a model keeps and where its peak is. All sizes are bytes on the device.

    Attributes:
        model: the class of the model.
        blocks: how many blocks the model has.
        checkpointed: how many of them are recomputed.
        parameter_bytes: parameters, each once.
        buffer_bytes: buffers, each once.
        gradient_bytes: the gradients that the step leaves on parameters.
        optimizer_bytes: the state of the optimizer; 0 where none was named.
        input_bytes: the inputs of the step on the CUDA device that was named; 0 where none was.
        workspace_bytes: what products of matrices take there, likewise.
        frozen_bytes: the part of `parameter_bytes` that linear layers hold frozen, and could in 4 bits.
        adapted: whether less than half of the parameters are trained.
        kept_bytes: what the forward allocated and is alive when the backward begins, without the loss.
        peak: the highest moment, with all of the above.
        holders: what makes up `kept_bytes`, the largest first.
        timeline: how it comes and goes.
        forward_flops: floating-point operations of the forward, as torch counts them.
        backward_flops: those of the backward, recomputes included.
        drawn: how often the step read what weights decide, such as the experts that a router chose, and was given
            values drawn at random: sizes that depend on them are those of one such draw.
        seconds: the least time of the step on the device that was named; 0 where none was.
        saved: the part of `kept_bytes` that checkpointed blocks keep because of `save`, by its names.
        assumptions: a sentence for each thing that the figures rest on and that the model does not say.
    """

    def __str__(self) -> str:
        """A report of at most 40 lines."""
        return "\n".join(explanation_lines(self))

    def to_html(self) -> str:
        """One page that needs no network: the memory over the step, and what holds it."""
        return explanation_page([("", self)])

    def _repr_html_(self) -> str:
        """The page in a notebook's cell."""
        return framed(self.to_html())

    def to_json(self) -> str:
        """The explanation as json, with its schema's version."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self), "peak_bytes": self.peak_bytes})
