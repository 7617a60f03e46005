"""`Explanation`: the figures of a model's step, rendered as text, JSON and HTML."""

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
    """The memory that a training step of a model keeps, and its peak. All sizes are bytes on the device.

    Attributes:
        model: the class of the model.
        blocks: how many blocks the model has.
        checkpointed: how many of them are recomputed.
        parameter_bytes: parameters, each once.
        buffer_bytes: buffers, each once.
        gradient_bytes: the gradients that the step leaves on parameters.
        optimizer_bytes: the optimizer's state; 0 if no optimizer was named.
        input_bytes: the step's inputs on the named CUDA device; 0 if none was named.
        workspace_bytes: the workspace of matrix products there; 0 if none was named.
        frozen_bytes: the part of `parameter_bytes` in frozen linear layers, which could be held in 4 bits.
        adapted: whether at most half of the parameters are trained.
        kept_bytes: what the forward allocated and is alive when the backward begins, without the loss.
        peak: the moment with the most bytes alive, all of the above included.
        holders: what makes up `kept_bytes`, the largest first.
        timeline: the bytes alive over the operators of the step.
        forward_flops: floating-point operations of the forward, as torch counts them.
        backward_flops: those of the backward, recomputes included.
        drawn: how many operators read values that depend on weights, such as the experts that a router chose, and were
            given values drawn at random: sizes that depend on them are those of one such draw.
        seconds: the least time of the step on the named device; 0 if none was named.
        saved: the part of `kept_bytes` that checkpointed blocks keep because of `save`, by its names.
        assumptions: a sentence for each assumption behind the figures that the model itself does not state.
    """

    def __str__(self) -> str:
        """Format a report of at most 40 lines."""
        return "\n".join(explanation_lines(self))

    def to_html(self) -> str:
        """Return one HTML page that needs no network: the memory over the step, and what holds it."""
        return explanation_page([("", self)])

    def _repr_html_(self) -> str:
        """Show the page in a notebook's cell."""
        return framed(self.to_html())

    def to_json(self) -> str:
        """Return the explanation as JSON, with the version of its schema."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self), "peak_bytes": self.peak_bytes})
