"""Find the faults in a folder's source, repair them in memory, and write the repair into the folder.

The source is never imported or run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.finding import Finding, Subject
from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.model_patches.release_names import LAYER_CLASS
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.discover import text_at
from ckpt_surgery.static.results import FAULTS, ApplyResult, FileChange, Problem
from ckpt_surgery.static.write import write_atomically
from ckpt_surgery.survey.configurations import read_config, remote_classes


class AdoptError(CkptSurgeryError, ValueError):
    """A folder cannot be adopted, or a repair or page cannot be written."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder as on the Hub.

    `classes` are the model classes whose code it holds, each with its reference (`modeling_x.XModel`).
    `auto_classes` are the classes of transformers that load them (`AutoModelForCausalLM`).
    """

    path: Path
    model_type: str
    classes: Mapping[str, str]
    auto_classes: Mapping[str, str]

    @property
    def name(self) -> str:
        """Return the name of the folder, even if its path is `.`."""
        return self.path.resolve().name

    def relative(self, path: str) -> str:
        """Return the path of a file relative to the folder, with forward slashes."""
        return Path(os.path.relpath(path, self.path)).as_posix()

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        """Read and check the folder at `path`.

        Raises:
            AdoptError: there is no such folder, or it holds no model with code of its own.
            TargetError: its configuration cannot be read, or names code that is not in the folder.
        """
        if not path.is_dir():
            what = "is a file: name the folder that it is in" if path.exists() else "does not exist: check the path"
            raise AdoptError(f"{path} {what}")
        check_alone = f"`ckpt_surgery check {path}` looks at any code"
        file = path / "config.json"
        if not file.exists():
            raise AdoptError(f"{path} has no config.json: adopt takes a model's folder; {check_alone}")
        if not any(path.glob("*.py")):
            raise AdoptError(f"{path} holds no Python file: there is no code to adopt")
        config = read_config(file)
        auto_map = config.get("auto_map")
        if not isinstance(auto_map, dict) or not auto_map:
            raise AdoptError(
                f"{file} has no `auto_map`, which names a model's own code: add it, or use what needs none: "
                f"{check_alone}"
            )
        classes = remote_classes(file, config)
        # if several keys name one class, the last one counts: AutoModel comes before the classes with heads
        keys = {value: key for key, value in auto_map.items() if isinstance(value, str)}
        auto_classes = {name: keys[reference] for name, reference in classes.items()}
        return cls(path, str(config.get("model_type") or ""), classes, auto_classes)


@dataclass(frozen=True, slots=True)
class SourceResult:
    """The findings in a folder, and their repairs, in memory."""

    folder: ModelFolder
    repair: ApplyResult

    @property
    def patches(self) -> dict[str, FileChange]:
        """Return the repair of each file, by its path relative to the model's folder."""
        return {self.folder.relative(change.path): change for change in self.repair.changes}

    @property
    def diff(self) -> bytes:
        """Return the unified diff as bytes, for `git apply` or `patch -p1` in the model's folder."""
        diff = b""
        for name, change in self.patches.items():
            before, after = ("\ufeff" * change.bom + text for text in (change.before, change.after))
            diff += replace(change, path=name, before=before, after=after).diff.encode(change.encoding)
        return diff

    @property
    def imports_layer(self) -> bool:
        """Tell whether a repaired file names GradientCheckpointingLayer and did not before."""
        changes = self.repair.changes
        return any(LAYER_CLASS in change.after and LAYER_CLASS not in change.before for change in changes)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Return what is wrong before the repair."""
        return tuple(finding for finding in self.repair.findings if finding.applicability in FAULTS)

    @property
    def left(self) -> tuple[Finding, ...]:
        """Return what is still wrong after it."""
        return tuple(finding for finding in self.repair.left if finding.applicability in FAULTS)

    @classmethod
    def of(cls, folder: ModelFolder, *, select: Sequence[str] = (), **options: Any) -> SourceResult:
        """Apply the rules for models to a folder, in memory. The options are those of `apply`.

        The rules for training scripts are left out, because measuring a model proves nothing about a script.

        Raises:
            AdoptError: no rule for models is selected, or a file changed while it was read.
            OptionError: a value that an option does not take.
        """
        codes = [rule.code for rule in RULES if rule.subject is Subject.MODEL and (not select or rule.code in select)]
        if not codes:
            raise AdoptError(
                "only rules for training scripts are selected: adopt looks at models, and `check` at scripts"
            )
        paths = [folder.path, *sorted(folder.path.glob("modeling_*.py"))]
        repair = apply(paths, write=False, select=codes, **options)
        for change in repair.changes:
            if text_at(change.path) != change.before:
                raise AdoptError(f"{change.path} changed while it was read: run this again")
        return cls(folder, repair)


def write_changes(changes: Sequence[FileChange]) -> None:
    """Write the repaired files, each atomically. If one cannot be written, those already written are restored.

    Raises:
        AdoptError: a file cannot be written, or has changed since it was read.
    """

    def write(change: FileChange, before: str, after: str) -> Problem | None:
        return write_atomically(change.path, before, after, encoding=change.encoding, bom=change.bom)

    written: list[FileChange] = []
    try:
        for change in changes:
            if problem := write(change, change.before, change.after):
                raise AdoptError(f"nothing was written: {problem}")
            written.append(change)
    except BaseException:
        for change in reversed(written):
            write(change, change.after, change.before)
        raise
