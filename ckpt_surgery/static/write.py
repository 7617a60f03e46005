"""Replace a file, or a folder, as a whole or not at all.

The old content stays on disk, byte for byte, until the complete new content takes its name.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ckpt_surgery.static.results import Problem

READ_ONLY = "left as it was: it is read-only; make it writable and run again"


def write_atomically(
    path: str | Path, before: str, after: str, *, encoding: str = "utf-8", bom: bool = False
) -> Problem | None:
    """Replace the content of `path`, which must still be `before`, with `after`.

    Mode, owner, encoding, byte order mark and line endings stay. A symbolic link stays a link: the file it points to
    is replaced. On failure the file is unchanged and the `Problem` says why. An interrupt leaves the file whole, old
    or new, and no temporary file.

    Args:
        path: the file.
        before: its text when it was read.
        after: its new text.
        encoding: the encoding of both.
        bom: whether a byte order mark precedes them.

    Returns:
        Why the file was left as it was; None if it was written, or there was nothing to change.
    """
    if before == after:
        return None
    mark = codecs.BOM_UTF8 if bom else b""
    try:
        return _replace(os.fspath(path), mark + before.encode(encoding), mark + after.encode(encoding))
    except UnicodeEncodeError as error:
        why = f"its encoding {encoding} has no character {error.object[error.start]!r}"
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                why = "the disk is full; make room and run again"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                why = "its folder cannot be written to; change its permissions and run again"
            case errno.ENOENT:
                why = "it is no longer there"
            case _:
                why = f"it could not be written ({error.strerror or error})"
    return Problem(os.fspath(path), f"left as it was: {why}")


@contextlib.contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """Provide a new folder to write to, which replaces the one at `place` at the end.

    Its path is absolute. After an error, `place` is as it was. The folder above it has to exist.

    Raises:
        OSError: something cannot be written.
    """
    place = place.absolute()
    scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    aside = scratch.with_name(f"{scratch.name}.old")
    try:
        yield scratch
        scratch.chmod(0o755)
        try:
            if place.exists():
                place.rename(aside)
            scratch.rename(place)
        except BaseException:
            if aside.exists() and not place.exists():
                aside.rename(place)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_only(path: str | Path) -> bool:
    """Tell whether nobody has permission to write the file; it is then left alone, even by root."""
    try:
        return not os.stat(path).st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    except OSError:
        return True


def _replace(name: str, old: bytes, new: bytes) -> Problem | None:
    target = os.path.realpath(name)
    status = os.stat(target)
    if read_only(target):
        return Problem(name, READ_ONLY)
    folder, base = os.path.split(target)
    # The name is chosen before the file is made, so that an interrupt at any point can remove it.
    temporary = os.path.join(folder, f".{base}.{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        made = os.stat(temporary)
        if hasattr(os, "chown") and (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
            # Only root may give a file away; anyone else owns the replacement, as with any editor.
            with contextlib.suppress(PermissionError):
                os.chown(temporary, status.st_uid, status.st_gid)
        os.chmod(temporary, stat.S_IMODE(status.st_mode))
        # Compared last: the less time until the replacement, the less can change in between.
        if Path(target).read_bytes() != old:
            return Problem(name, "left as it was: it changed on disk since it was read; run again")
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return None
