"""The targets that a survey examines, each a model class, and the options for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_surgery.errors import Unverifiable
from ckpt_surgery.measure.report import ModelFacts, Report
from ckpt_surgery.measure.results import Level, Mode

if TYPE_CHECKING:
    from ckpt_surgery.tiny import ModelEntry

_LONGEST = 86400.0
"""The largest time limit in seconds: a day."""


class TargetError(Unverifiable):
    """An argument of a survey cannot be used."""


class TargetKind(StrEnum):
    """The origin of a target's model."""

    CLASS = "class"  # a class of transformers with its default configuration
    CONFIG = "config"  # a class of transformers with a config.json
    REMOTE = "remote"  # a class whose code lies beside its config.json
    FACTORY = "factory"  # a function that returns a model


@dataclass(frozen=True, slots=True)
class SurveyTarget:
    """One model class to examine, as plain JSON data.

    `argument` is the MODEL argument of the command line that names it. `model` is the name of the class, for a
    factory the argument. `source` is the configuration file (CONFIG), the folder and the reference in its `auto_map`
    (REMOTE), or the file of a factory if the argument names one (FACTORY). `options` are set on the configuration, and
    `variant` is their name for people.
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
    def module(self) -> str:
        """The name of a factory's module; if the argument names a file, a name that no other module has."""
        module = self.argument.rpartition(":")[0]
        return f"file_{re.sub(r'[^a-zA-Z0-9]', '_', self.code_file)}" if self.code_file else module

    @property
    def code_file(self) -> str:
        """The file of code that lies beside a configuration, or of a factory named by its file; else empty."""
        if self.kind is TargetKind.FACTORY:
            return str(Path(self.source).resolve()) if self.source else ""
        if self.kind is not TargetKind.REMOTE:
            return ""
        folder, _, reference = self.source.partition("::")
        return f"{Path(folder, *reference.split('.')[:-1])}.py"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data; `of` reads it back."""
        return {**asdict(self), "kind": self.kind.value}  # a plain string, since xdist refuses enums

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> SurveyTarget:
        """Return the target that `to_dict` made `data` from. Raises TypeError, KeyError or ValueError otherwise."""
        options = tuple((name, value) for name, value in data["options"])
        return cls(**{**data, "kind": TargetKind(data["kind"]), "options": options})

    def empty_report(self) -> Report:
        """Return a report that says no more than what the target is."""
        return Report(self.model, self.model_type, self.variant, self.argument, ModelFacts(source=self.code_file))

    @classmethod
    def of_class(cls, entry: ModelEntry, model_type: str = "") -> SurveyTarget:
        """Return the target of one class, under its own model type or another that it serves."""
        return cls(argument=entry.name, model=entry.name, model_type=model_type or entry.model_type)


@dataclass(frozen=True, slots=True)
class SurveyOptions:
    """The options for all targets. `timeout` is in seconds per phase, `examination` names the class to use.

    `device` is where models run, as torch names it; empty for where they are built.
    """

    modes: tuple[Mode, ...]
    levels: str | tuple[Level, ...]
    timeout: float
    examination: str
    device: str = ""


def part_of(targets: Sequence[SurveyTarget], shard: tuple[int, int]) -> list[SurveyTarget]:
    """Return part `i` of `n` for the shard (i, n), counted from 1. Parts are disjoint, complete, equally long."""
    index, count = shard
    return list(targets[len(targets) * (index - 1) // count : len(targets) * index // count])


def parse_shard(text: str) -> tuple[int, int]:
    """Return the numbers of `i/n`. Raises TargetError unless `i` is from 1 to `n`."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    index, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= index <= count:
        raise TargetError(f"{text!r} is not a shard: write i/n with i from 1 to n, such as 2/4")
    return index, count


def checked_timeout(seconds: float) -> float:
    """Return `seconds`, if they can be a time limit. Raises TargetError unless they are from 0.1 to a day."""
    if not 0.1 <= seconds <= _LONGEST:
        raise TargetError(f"{seconds:g} is not a time limit: give seconds from 0.1 to {_LONGEST:g}")
    return seconds
