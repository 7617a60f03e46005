"""The errors and warnings that a caller may want to catch.

Imports nothing from the package, so that every process can use it.

Each message is one sentence: what is wrong, where, why, and what to do.
"""

from __future__ import annotations

from enum import StrEnum
from traceback import walk_tb


class CkptSurgeryError(Exception):
    """The base of all errors that this package raises on purpose."""


class MissingPackageError(CkptSurgeryError, ImportError):
    """A package, or a later release of it, is not installed. `name` is that package."""


class OptionError(CkptSurgeryError, ValueError):
    """A function does not take this value."""


class OptionTypeError(OptionError, TypeError):
    """A function does not take a value of this type, or a tensor of this dtype."""


class TransformersNotFound(CkptSurgeryError, LookupError):
    """No paths were given, and there is no installed transformers to look at instead."""


class SurgeryError(CkptSurgeryError):
    """A surgery cannot be done, or a call cannot be checkpointed correctly."""


class ModifiedTensorError(SurgeryError, RuntimeError):
    """A tensor that the backward pass needs was modified in place after its forward pass."""


class SurgeryWarning(UserWarning):
    """A surgery goes on, but not with the options that were requested."""


class GuardError(CkptSurgeryError):
    """A guard cannot watch a model, or found a fault in its training."""


class PlanningError(CkptSurgeryError):
    """A model's memory cannot be predicted, or a plan cannot be made."""


class NotOnShapes(PlanningError):
    """A model, or a step of it, cannot run on shapes (torch's fake tensors); `reason` leaves out the advice."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}: {advice}" if advice else reason)
        self.reason = reason


class DoesNotFitError(PlanningError):
    """No way to train a model fits into the given memory."""


class Unverifiable(CkptSurgeryError, ValueError):
    """A model cannot be given a verdict."""


class VerifyError(Unverifiable):
    """The arguments of `verify` allow no verdict."""


class BuildStage(StrEnum):
    """The steps of building a tiny model, in their order."""

    IMPORT = "import"
    CONFIGURATION = "configuration"
    SIZE = "size"
    CONSTRUCTION = "construction"
    INPUTS = "inputs"
    FORWARD = "forward"
    TRAINING_STEP = "training step"


class CannotBuild(Unverifiable):
    """No tiny form of a model can be made.

    `name` is the model's class, `stage` the step that failed, and `reason` its error on one line. `missing_package`
    tells whether an import failed. `origin` is the type of the error and the places (file and line) it came through,
    outermost first; empty if there was no exception.
    """

    def __init__(self, name: str, stage: BuildStage, error: BaseException | str) -> None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        line = " ".join(text.split())
        line = line if len(line) <= 300 else line[:297] + "..."
        self.name, self.stage, self.reason = name, stage, line
        self.missing_package = isinstance(error, ImportError)
        self.origin: tuple[str, ...] = ()
        if isinstance(error, BaseException):
            places = (f"{frame.f_code.co_filename}:{line}" for frame, line in walk_tb(error.__traceback__))
            self.origin = (f"{type(error).__module__}.{type(error).__qualname__}", *places)
        super().__init__(f"no tiny {name} can be made: {stage} raised {line}")

    def __reduce__(self) -> tuple[type[CannotBuild], tuple[str, BuildStage, str], dict[str, object]]:
        state = {"missing_package": self.missing_package, "origin": self.origin}
        return CannotBuild, (self.name, self.stage, self.reason), state


class DistributedError(CkptSurgeryError, RuntimeError):
    """Training on several ranks would go wrong, or has gone wrong."""


class DistributedWarning(UserWarning):
    """Training on several ranks goes on despite a fault."""


class PlacementError(DistributedError):
    """A model would train wrong with its parameters on the devices where they are."""


class UpstreamError(CkptSurgeryError):
    """A pull request could not be prepared."""
