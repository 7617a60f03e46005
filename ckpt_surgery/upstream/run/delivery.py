"""The folder of one series: written beside its place and moved there whole, without losing a word of the human's."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.text import listed

BODY = "body.md"
_MADE = ".made.json"
"""The hashes of the files as they were written here: one that is another now is a human's."""


def check_folder(out: Path, checkout: Path, names: tuple[str, ...] = ()) -> None:
    """Notice before the work, not after it, that the series cannot be written to `out`.

    Raises UpstreamError: inside the checkout, not a folder, not writable, or a subfolder that was not made here.
    """
    if out.resolve().is_relative_to(checkout.resolve()):
        raise UpstreamError(
            f"--out {out} lies in the checkout, which is never written to: name a folder outside {checkout}"
        )
    place = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not place.is_dir():
        raise UpstreamError(f"--out {out} cannot be made: {place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UpstreamError(f"--out {out} cannot be written to: change the permissions of {place}, or name another")
    for name in names:
        folder = out / name
        if folder.exists() and not (folder / _MADE).is_file():
            raise UpstreamError(f"{folder} is there and was not made by this command: move it away")


@contextmanager
def delivered(out: Path, name: str) -> Iterator[Path]:
    """A folder to write to, which becomes `out/name` as a whole when all went well, and goes without a trace if not.

    Its path is absolute. Raises UpstreamError where something cannot be written.
    """
    try:
        fresh = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=out)).absolute()
        try:
            yield scratch
            scratch.chmod(0o755)
            _replace(out / name, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            if fresh and not any(out.iterdir()):
                out.rmdir()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full; make room and run again" if full else error.strerror or str(error)
        raise UpstreamError(f"{out / name} could not be written: {why}") from None


def write_documents(folder: Path, documents: Mapping[str, str], old: Path) -> str:
    """Write the documents. What a human added or changed in the folder `old` comes along; the new is put beside it.

    The sentence that says so, or nothing.
    """
    for name, text in documents.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    kept = _of_the_humans(old)
    for name in kept:
        new = folder / name
        if new.exists():
            new.rename(new.with_name(f"{new.stem}.new{new.suffix}"))
        shutil.copy2(old / name, new)
    made = {path.name: _digest(path) for path in folder.iterdir() if path.name not in kept}
    (folder / _MADE).write_text(json.dumps(made, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if not kept:
        return ""
    return f"what is yours in {old} stays ({listed(kept)}); what is new beside it has .new in its name"


def _of_the_humans(old: Path) -> list[str]:
    """The files of a folder that are not as they were written here."""
    if not old.is_dir():
        return []
    try:
        made = dict(json.loads((old / _MADE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        made = {}
    files = (path for path in old.iterdir() if path.is_file() and path.name != _MADE)
    return sorted(path.name for path in files if made.get(path.name) != _digest(path))


def _replace(place: Path, made: Path) -> None:
    """Put the folder `made` in the place of the one that is there."""
    aside = made.with_name(f"{made.name}.old")
    if place.exists():
        place.rename(aside)
    try:
        made.rename(place)
    except BaseException:
        if aside.exists():
            aside.rename(place)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
