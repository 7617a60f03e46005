"""The proved repair written into the user's folder: every file, or none."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.adopt.folder import AdoptError
from ckpt_surgery.adopt.source import SourcePatch
from ckpt_surgery.static.results import Problem
from ckpt_surgery.static.write import write_atomically


def write_patches(patches: Sequence[SourcePatch]) -> None:
    """Write the repaired files, each atomically. If one cannot be written, those before it are put back.

    Raises:
        AdoptError: a file cannot be written, or is not what it was when it was read.
    """
    written: list[SourcePatch] = []
    try:
        for patch in patches:
            problem = _replace(patch, patch.change.before, patch.change.after)
            if problem is not None:
                raise AdoptError(f"nothing was written: {problem}")
            written.append(patch)
    except BaseException:
        for patch in reversed(written):
            _replace(patch, patch.change.after, patch.change.before)
        raise


def _replace(patch: SourcePatch, before: str, after: str) -> Problem | None:
    return write_atomically(patch.change.path, before, after, encoding=patch.encoding, bom=patch.bom)
