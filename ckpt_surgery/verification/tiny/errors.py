"""The one error of this package."""

from __future__ import annotations

from ckpt_surgery.verification.errors import Unverifiable


class CannotBuild(Unverifiable):
    """A tiny form of a model could not be made. The message is one sentence: class, stage, last error in a line."""

    def __init__(self, name: str, stage: str, error: BaseException | str) -> None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        line = " ".join(text.split())
        line = line if len(line) <= 300 else line[:297] + "..."
        self.name, self.stage, self.reason = name, stage, line
        super().__init__(f"no tiny {name} can be made: {stage} raised {line}")

    def __reduce__(self) -> tuple[type[CannotBuild], tuple[str, str, str]]:
        return CannotBuild, (self.name, self.stage, self.reason)
