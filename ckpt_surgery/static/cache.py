"""The cache on disk: pickled entries, keyed by content and by the code that made them, so that none goes stale.

It holds the facts of single files and the results of whole checks, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
from functools import cache
from pathlib import Path

from platformdirs import user_cache_dir

from ckpt_surgery import codemods, model_patches


@cache
def code_version() -> str:
    """Return a digest of Python and the code of the static half: entries are valid for one such version."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(sys.version.encode())
    for folder in (codemods.__path__[0], model_patches.__path__[0], os.path.dirname(__file__)):
        for source in sorted(Path(folder).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def load_entry(key: str) -> object | None:
    """Return a cached entry, or None if there is none or it cannot be read."""
    # A broken entry, whatever is wrong with it, is made again: the cache must never make a run fail.
    with contextlib.suppress(Exception):
        entry: object = pickle.loads(_place(key).read_bytes())
        return entry
    return None


def store_entry(key: str, entry: object) -> None:
    """Keep an entry. A cache that cannot be written to, or an entry that cannot be pickled, is not an error."""
    place = _place(key)
    with contextlib.suppress(Exception):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(handle, "wb") as file:
            pickle.dump(entry, file, protocol=pickle.HIGHEST_PROTOCOL)
        os.replace(name, place)


def _place(key: str) -> Path:
    """Return where an entry is: in the user's cache folder, or the one that CKPT_SURGERY_CACHE names."""
    root = os.environ.get("CKPT_SURGERY_CACHE") or user_cache_dir("ckpt_surgery", appauthor=False)
    return Path(root).expanduser() / "facts" / code_version() / key[:2] / key
