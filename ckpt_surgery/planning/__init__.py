"""What a training step will keep, before it is run: on shapes, without weights."""

from ckpt_surgery.planning.allocations import Allocation, Kind, ModulePlace, StepAllocations, StepPhase
from ckpt_surgery.planning.explain import explain
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.figures import Holder, MemoryTimeline, Peak
from ckpt_surgery.planning.page import explanation_page

__all__ = [
    "Allocation",
    "Explanation",
    "Holder",
    "Kind",
    "MemoryTimeline",
    "ModulePlace",
    "Peak",
    "StepAllocations",
    "StepPhase",
    "explain",
    "explanation_page",
]
