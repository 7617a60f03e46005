"""What the source of a folder says, and what its repair would make of it. Nothing is imported, run or written."""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ckpt_surgery.adopt.folder import AdoptError, ModelFolder
from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.finding import Finding, Subject
from ckpt_surgery.codemods.repair import DeriveImportedLayer, ImportName
from ckpt_surgery.model_patches.release_names import LAYER_CLASS
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.discover import SourceFile, read_source
from ckpt_surgery.static.results import FAULTS, ApplyResult, FileChange


@dataclass(frozen=True, slots=True)
class SourcePatch:
    """The repair of one file. `name` is its path from the model's folder on; the bytes are those on disk."""

    change: FileChange
    name: str
    encoding: str
    bom: bool

    @property
    def before(self) -> bytes:
        return self._bytes(self.change.before)

    @property
    def after(self) -> bytes:
        return self._bytes(self.change.after)

    @property
    def diff(self) -> bytes:
        """The unified diff of the bytes, as `git apply` and `patch -p1` read it in the model's folder."""
        names = f"a/{self.name}".encode(), f"b/{self.name}".encode()
        lines = difflib.diff_bytes(difflib.unified_diff, _lines(self.before), _lines(self.after), *names)
        return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)

    @property
    def imports_layer(self) -> bool:
        """Whether the repaired file imports GradientCheckpointingLayer where it did not before."""
        repairs = [repair for made in self.change.repairs for repair in made]
        return any(
            isinstance(repair, DeriveImportedLayer) or (isinstance(repair, ImportName) and repair.name == LAYER_CLASS)
            for repair in repairs
        )

    def _bytes(self, text: str) -> bytes:
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)


@dataclass(frozen=True, slots=True)
class SourceResult:
    """The findings in a folder, and the repairs that were made of its texts in memory."""

    folder: ModelFolder
    repair: ApplyResult
    patches: tuple[SourcePatch, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong before the repair."""
        return tuple(finding for finding in self.repair.findings if finding.applicability in FAULTS)

    @property
    def left(self) -> tuple[Finding, ...]:
        """What is still wrong after it."""
        return tuple(finding for finding in self.repair.left if finding.applicability in FAULTS)

    @property
    def diff(self) -> bytes:
        return b"".join(patch.diff for patch in self.patches)


def examine_source(
    folder: ModelFolder,
    *,
    unsafe: bool = False,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    exclude: Collection[str] = (),
    per_file_ignores: Mapping[str, Collection[str]] | None = None,
    include_unsupported: bool = False,
    jobs: int | None = None,
    cache: bool = True,
) -> SourceResult:
    """Apply the rules for models to a folder, in memory. The options are those of `apply`.

    The rules for training scripts are left out: no proof of a model says anything about a script beside it.

    Raises:
        AdoptError: no rule for models is selected, or a file changed meanwhile.
        OptionError: a value that an option does not take.
    """
    codes = [rule.code for rule in RULES if rule.subject is Subject.MODEL and (not select or rule.code in select)]
    if not codes:
        raise AdoptError("only rules for training scripts are selected: adopt looks at models, and `check` at scripts")
    repair = apply(
        [folder.path, *sorted(folder.path.glob("modeling_*.py"))],
        unsafe=unsafe,
        write=False,
        select=codes,
        ignore=ignore,
        exclude=exclude,
        per_file_ignores=per_file_ignores,
        include_unsupported=include_unsupported,
        jobs=jobs,
        cache=cache,
    )
    return SourceResult(folder, repair, tuple(_patch(folder, change) for change in repair.changes))


def _patch(folder: ModelFolder, change: FileChange) -> SourcePatch:
    source = read_source(change.path)
    if not isinstance(source, SourceFile) or source.text != change.before:
        raise AdoptError(f"{change.path} changed while it was read: run this again")
    return SourcePatch(change, folder.relative(change.path), source.encoding, source.bom)


def _lines(data: bytes) -> list[bytes]:
    """Lines as git counts them: only a line feed ends one."""
    return [line for line in re.split(rb"(?<=\n)", data) if line]
