"""Find what is wrong in a folder's source, repair it in memory, and write the repair into the folder.

Nothing is imported or run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ckpt_surgery.adopt.folder import AdoptError, ModelFolder
from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.finding import Finding, Subject
from ckpt_surgery.model_patches.release_names import LAYER_CLASS
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.discover import SourceFile, read_source
from ckpt_surgery.static.results import FAULTS, ApplyResult, FileChange, Problem
from ckpt_surgery.static.write import write_atomically


@dataclass(frozen=True, slots=True)
class SourcePatch:
    """The repair of one file. `name` is its path from the model's folder on; the bytes are those on disk."""

    change: FileChange
    name: str
    encoding: str
    bom: bool

    @property
    def after(self) -> bytes:
        """Return the bytes of the repaired file."""
        return ("\ufeff" * self.bom + self.change.after).encode(self.encoding)

    @property
    def diff(self) -> bytes:
        """Return the unified diff of the bytes, as `git apply` and `patch -p1` read it in the model's folder."""
        before, after = ("\ufeff" * self.bom + text for text in (self.change.before, self.change.after))
        return replace(self.change, path=self.name, before=before, after=after).diff.encode(self.encoding)

    @property
    def imports_layer(self) -> bool:
        """Tell whether the repaired file names GradientCheckpointingLayer where it did not before."""
        return LAYER_CLASS in self.change.after and LAYER_CLASS not in self.change.before


@dataclass(frozen=True, slots=True)
class SourceResult:
    """The findings in a folder, and the repairs of its texts in memory."""

    folder: ModelFolder
    repair: ApplyResult
    patches: tuple[SourcePatch, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Return what is wrong before the repair."""
        return tuple(finding for finding in self.repair.findings if finding.applicability in FAULTS)

    @property
    def left(self) -> tuple[Finding, ...]:
        """Return what is still wrong after it."""
        return tuple(finding for finding in self.repair.left if finding.applicability in FAULTS)


def examine_source(folder: ModelFolder, *, select: Sequence[str] = (), **options: Any) -> SourceResult:
    """Apply the rules for models to a folder, in memory. The options are those of `apply`.

    The rules for training scripts are left out: no proof of a model says anything about a script beside it.

    Raises:
        AdoptError: no rule for models is selected, or a file changed meanwhile.
        OptionError: a value that an option does not take.
    """
    codes = [rule.code for rule in RULES if rule.subject is Subject.MODEL and (not select or rule.code in select)]
    if not codes:
        raise AdoptError("only rules for training scripts are selected: adopt looks at models, and `check` at scripts")
    paths = [folder.path, *sorted(folder.path.glob("modeling_*.py"))]
    repair = apply(paths, write=False, select=codes, **options)
    patches = []
    for change in repair.changes:
        source = read_source(change.path)
        if not isinstance(source, SourceFile) or source.text != change.before:
            raise AdoptError(f"{change.path} changed while it was read: run this again")
        patches.append(SourcePatch(change, folder.relative(change.path), source.encoding, source.bom))
    return SourceResult(folder, repair, tuple(patches))


def write_patches(patches: Sequence[SourcePatch]) -> None:
    """Write the repaired files, each atomically. If one cannot be written, those before it are put back.

    Raises:
        AdoptError: a file cannot be written, or is not what it was when it was read.
    """

    def write(patch: SourcePatch, before: str, after: str) -> Problem | None:
        return write_atomically(patch.change.path, before, after, encoding=patch.encoding, bom=patch.bom)

    written: list[SourcePatch] = []
    try:
        for patch in patches:
            problem = write(patch, patch.change.before, patch.change.after)
            if problem is not None:
                raise AdoptError(f"nothing was written: {problem}")
            written.append(patch)
    except BaseException:
        for patch in reversed(written):
            write(patch, patch.change.after, patch.change.before)
        raise
