"""The errors and warnings that a caller may want to catch. Imports nothing, so that every process can know them.

The message of each is one sentence: what is wrong, where, why, and what to do.
"""

from __future__ import annotations


class CkptSurgeryError(Exception):
    """The base of all errors that this package raises on purpose."""


class MissingPackageError(CkptSurgeryError, ImportError):
    """What was asked for needs a package that is not installed. `name` is that package."""


class SurgeryError(CkptSurgeryError):
    """A surgery cannot be done, or a call cannot be checkpointed correctly."""


class SurgeryWarning(UserWarning):
    """A surgery goes on, but not as it was asked for."""


class Unverifiable(CkptSurgeryError, ValueError):
    """There is no verdict on a model."""


class VerifyError(Unverifiable):
    """What `verify` was given allows no verdict."""


class CannotBuild(Unverifiable):
    """No tiny form of a model could be made: its class, the stage that failed, and the last error on one line."""

    def __init__(self, name: str, stage: str, error: BaseException | str) -> None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        line = " ".join(text.split())
        line = line if len(line) <= 300 else line[:297] + "..."
        self.name, self.stage, self.reason = name, stage, line
        super().__init__(f"no tiny {name} can be made: {stage} raised {line}")

    def __reduce__(self) -> tuple[type[CannotBuild], tuple[str, str, str]]:
        return CannotBuild, (self.name, self.stage, self.reason)


class DistributedError(CkptSurgeryError, RuntimeError):
    """Training on several ranks would go wrong, or has gone wrong."""


class DistributedWarning(UserWarning):
    """Training on several ranks goes on, and something about it is wrong."""


class PlacementError(DistributedError):
    """A model would train wrong where its parameters are placed."""


class UpstreamError(CkptSurgeryError):
    """No pull request was prepared."""
