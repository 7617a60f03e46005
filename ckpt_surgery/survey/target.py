"""One model class that a survey examines, and how it is named on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ckpt_surgery.errors import Unverifiable


class TargetError(Unverifiable):
    """An argument of a survey cannot be used."""


class TargetKind(StrEnum):
    """Where the model of a target comes from."""

    CLASS = "class"
    CONFIG = "config"
    REMOTE = "remote"
    FACTORY = "factory"


@dataclass(frozen=True, slots=True)
class SurveyTarget:
    """One model class to examine, as plain JSON data.

    `argument` is the MODEL argument of the command line that names it. `model` is the name of the class, for a
    factory the argument. `source` is the configuration file (CONFIG), or the folder and the reference in its
    `auto_map` (REMOTE). `options` are set on the configuration; `variant` is the word for them, empty if there are
    none.
    """

    argument: str
    model: str
    kind: TargetKind = TargetKind.CLASS
    model_type: str = ""
    variant: str = ""
    source: str = ""
    options: tuple[tuple[str, bool], ...] = ()

    @property
    def label(self) -> str:
        """The class, with its variant if it has one."""
        return f"{self.model} ({self.variant})" if self.variant else self.model

    @property
    def code_file(self) -> str:
        """The file of the class, where the code came with a configuration."""
        if self.kind is not TargetKind.REMOTE:
            return ""
        folder, _, reference = self.source.partition("::")
        return f"{Path(folder, *reference.split('.')[:-1])}.py"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; `target_of` reads it back."""
        return {**asdict(self), "kind": self.kind.value}  # a plain string: xdist sends nothing else


def target_of(data: Mapping[str, Any]) -> SurveyTarget:
    """The target that `SurveyTarget.to_dict` made `data` from. Raises TypeError, KeyError or ValueError otherwise."""
    options = tuple((name, value) for name, value in data["options"])
    return SurveyTarget(**{**data, "kind": TargetKind(data["kind"]), "options": options})
