"""Write the folder of one series: all of it or nothing, and without losing a person's work in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.static.write import whole_folder
from ckpt_surgery.text import listed

_HASHES = ".made.json"
"""The file with the hashes of all others as they were written. A person has changed a file with another hash."""


def check_folder(out: Path, checkout: Path, names: tuple[str, ...] = ()) -> None:
    """Check before the work that the series can be written to `out`, in subfolders with these names.

    Raises:
        UpstreamError: `out` is inside the checkout, is not a folder or not writable, or has such a subfolder that was
            not made by this command.
    """
    if out.resolve().is_relative_to(checkout.resolve()):
        raise UpstreamError(
            f"--out {out} lies in the checkout, which is never written to: name a folder outside {checkout}"
        )
    place = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not place.is_dir():
        raise UpstreamError(f"--out {out} cannot be made: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UpstreamError(f"--out {out} cannot be written to: change the permissions of {place}, or name another")
    for name in names:
        folder = out / name
        if folder.exists() and not (folder / _HASHES).is_file():
            raise UpstreamError(f"{folder} exists and was not made by this command: move it away")


@contextmanager
def output_folder(out: Path, name: str) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `out/name` at the end, and is removed after an error.

    Raises:
        UpstreamError: something cannot be written.
    """
    try:
        is_new = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        try:
            with whole_folder(out / name) as folder:
                yield folder
        finally:
            if is_new and not any(out.iterdir()):
                out.rmdir()
    except OSError as error:
        raise UpstreamError(f"{out / name} could not be written: {error.strerror or error}") from None


def write_documents(folder: Path, documents: Mapping[str, str], old: Path) -> str:
    """Write the documents to a new folder; `old` is the folder that it will replace.

    Files that a person added or changed in `old` are kept, with the new document beside them.

    Returns:
        A clause that says so; empty if there are none.
    """
    for name, text in documents.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    try:
        written = dict(json.loads((old / _HASHES).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        written = {}
    files = [path for path in old.iterdir() if path.is_file() and path.name != _HASHES] if old.is_dir() else []
    kept = sorted(path.name for path in files if written.get(path.name) != _digest(path))
    for name in kept:
        new = folder / name
        if new.exists():
            new.rename(new.with_name(f"{new.stem}.new{new.suffix}"))
        shutil.copy2(old / name, new)
    hashes = {path.name: _digest(path) for path in folder.iterdir() if path.name not in kept}
    (folder / _HASHES).write_text(json.dumps(hashes, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if not kept:
        return ""
    return f"your own files in {old} were kept ({listed(kept)}); new versions beside them have .new in their names"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
