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

from ckpt_surgery.upstream.errors import UpstreamError

EVIDENCE = "evidence.json"
BODY = "body.md"
_MADE = ".made.json"
"""The hash of the body as it was written here: a body that is another now holds words of the human's."""


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
    """Write the documents; a body at `old` that a human has changed stays, and the new one is put beside it.

    The sentence that says so, or nothing.
    """
    for name, text in documents.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    (folder / _MADE).write_text(json.dumps({BODY: _digest(documents[BODY].encode())}) + "\n", encoding="utf-8")
    words = _human_words(old)
    if words is None or words == documents[BODY].encode():
        return ""
    (folder / BODY).rename(folder / "body.new.md")
    (folder / BODY).write_bytes(words)
    return f"{old / BODY} holds words of yours and stays; the new one is body.new.md"


def _human_words(old: Path) -> bytes | None:
    """The body at `old`, where somebody has written into it, or may have."""
    try:
        text = (old / BODY).read_bytes()
    except FileNotFoundError:
        return None
    try:
        made = json.loads((old / _MADE).read_text(encoding="utf-8"))[BODY]
    except (OSError, ValueError, KeyError, TypeError):
        made = ""
    return None if _digest(text) == made else text


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


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
