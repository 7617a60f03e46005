"""What files say, read in worker processes and kept in a cache on disk.

A cached entry is keyed by the file's content and by the code that extracts, so nothing can make it stale;
what files mean together is never cached here.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from platformdirs import user_cache_dir

import codemods
import model_patches
from ckpt_surgery.source.discover import SourceText, read_source
from ckpt_surgery.source.results import Problem, Progress
from ckpt_surgery.source.suppress import NONE, Suppressions, read_suppressions
from codemods.extract import extract
from codemods.facts import FileFacts

_WORTH_A_POOL = 24
"""Fewer files than this are read faster here than a pool of processes starts."""
_CHUNK = 12


@dataclass(frozen=True, slots=True)
class Read:
    """One file read: its digest, what it says, and its suppressing comments."""

    path: str
    digest: str
    facts: FileFacts
    suppressions: Suppressions = NONE


@cache
def code_version() -> str:
    """A digest of the rules and of what they know: cached facts and results belong to one such version."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(sys.version.encode())
    for package in (codemods, model_patches):
        for source in sorted(Path(package.__path__[0]).glob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where entries are kept: the user's cache, or the folder that CKPT_SURGERY_CACHE names."""
    root = os.environ.get("CKPT_SURGERY_CACHE") or user_cache_dir("ckpt_surgery", appauthor=False)
    return Path(root).expanduser() / "facts" / code_version()


def load_entry(key: str) -> object | None:
    """A cached entry, or None where there is none or it cannot be read."""
    path = cache_folder() / key[:2] / key
    # Whatever is wrong with an entry, it is then made anew: the cache may never fail a run.
    with contextlib.suppress(Exception):
        entry: object = pickle.loads(path.read_bytes())
        return entry
    return None


def store_entry(key: str, entry: object) -> None:
    """Keep an entry. A cache that cannot be written to is no error."""
    folder = cache_folder() / key[:2]
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(pickle.dumps(entry, protocol=pickle.HIGHEST_PROTOCOL))
        os.replace(name, folder / key)


def read_one(source: SourceText, *, use_cache: bool) -> Read | Problem:
    """The facts of one file's text, from the cache where it has them."""
    if use_cache:
        entry = load_entry(source.digest)
        if isinstance(entry, tuple):
            facts, suppressions = entry
            problems = suppressions.problems
            moved = Suppressions(suppressions.by_line, tuple(Problem(source.path, p.message) for p in problems))
            return Read(source.path, source.digest, facts, moved)
    try:
        facts = extract(source.text)
    except SyntaxError as error:
        return Problem(source.path, f"line {error.lineno or 1} does not parse ({error.msg}): not checked; mend it")
    except (RecursionError, MemoryError, ValueError) as error:
        return Problem(source.path, f"is too deep for Python's parser ({type(error).__name__}): not checked")
    suppressions = read_suppressions(source.text, source.path, [rule.code for rule in codemods.RULES])
    if use_cache:
        store_entry(source.digest, (facts, suppressions))
    return Read(source.path, source.digest, facts, suppressions)


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Trees and facts are many small objects that live long: collecting among them costs more than all else."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Reader:
    """Reads files with up to `jobs` processes, started only when there is enough to do."""

    def __init__(self, jobs: int | None, *, use_cache: bool, progress: Progress | None) -> None:
        self.jobs = jobs or os.cpu_count() or 1
        self.use_cache = use_cache
        self.progress = progress
        self._pool: Executor | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def read(self, sources: Sequence[SourceText], step: str = "reading") -> Iterator[Read | Problem]:
        """The facts of every file, in the order given."""
        total = len(sources)
        if self.jobs == 1 or total < _WORTH_A_POOL:
            for done, source in enumerate(sources, 1):
                yield read_one(source, use_cache=self.use_cache)
                self._tell(step, done, total)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.jobs, initializer=gc.disable)
        chunks = [(sources[start : start + _CHUNK], self.use_cache) for start in range(0, total, _CHUNK)]
        done = 0
        for results in self._pool.map(_read_chunk, chunks):
            yield from results
            done += len(results)
            self._tell(step, done, total)

    def _tell(self, step: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(step, done, total)


def _read_chunk(chunk: tuple[Sequence[SourceText], bool]) -> list[Read | Problem]:
    sources, use_cache = chunk
    return [read_one(source, use_cache=use_cache) for source in sources]


def read_sources(paths: Sequence[Path]) -> tuple[list[SourceText], list[Problem]]:
    """The texts of the files that can be read, and a problem for each other one."""
    read = [read_source(path) for path in paths]
    return [one for one in read if isinstance(one, SourceText)], [one for one in read if isinstance(one, Problem)]
