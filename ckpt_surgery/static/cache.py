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
from typing import TypeAlias, TypeGuard

from platformdirs import user_cache_dir

from ckpt_surgery import codemods, model_patches
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.static.discover import SourceFile, read_source
from ckpt_surgery.static.results import Problem, Progress
from ckpt_surgery.static.suppress import NONE, Suppressions, read_suppressions

_Entry: TypeAlias = tuple[FileFacts, Suppressions]
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
        for source in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where entries are kept: the user's cache, or the folder that CKPT_SURGERY_CACHE names."""
    root = os.environ.get("CKPT_SURGERY_CACHE") or user_cache_dir("ckpt_surgery", appauthor=False)
    return Path(root).expanduser() / "facts" / code_version()


def load_entry(key: str) -> object | None:
    """A cached entry, or None where there is none or it cannot be read."""
    # Whatever is wrong with an entry, it is then made anew: the cache may never fail a run.
    with contextlib.suppress(Exception):
        entry: object = pickle.loads((cache_folder() / key[:2] / key).read_bytes())
        return entry
    return None


def store_entry(key: str, data: bytes) -> None:
    """Keep a pickled entry. A cache that cannot be written to is no error."""
    folder = cache_folder() / key[:2]
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, folder / key)


def read_one(source: SourceFile, *, use_cache: bool) -> Read | Problem:
    """The facts of one file's text, from the cache where it has them."""
    known = load_entry(source.digest) if use_cache else None
    return _read(source, known if _is_entry(known) else _extracted(source, use_cache))


def _is_entry(known: object) -> TypeGuard[_Entry]:
    return isinstance(known, tuple) and tuple(map(type, known)) == (FileFacts, Suppressions)


def _extracted(source: SourceFile, use_cache: bool) -> _Entry | str:
    """What a text says, or why it cannot be told; kept in the cache."""
    data = _extract(source, use_cache)
    return data if isinstance(data, str) else _loads(data)


def _extract(source: SourceFile, use_cache: bool) -> bytes | str:
    """The same, pickled once for the cache and for the way between processes."""
    try:
        facts = extract(source.text)
    except SyntaxError as error:
        return f"line {error.lineno or 1} does not parse ({error.msg}): not checked; mend it"
    except (RecursionError, MemoryError, ValueError) as error:
        return f"is too deep for Python's parser ({type(error).__name__}): not checked"
    suppressions = read_suppressions(source.text, source.path, [rule.code for rule in codemods.RULES])
    data = pickle.dumps((facts, suppressions), protocol=pickle.HIGHEST_PROTOCOL)
    if use_cache:
        store_entry(source.digest, data)
    return data


def _loads(data: bytes) -> _Entry:
    entry: _Entry = pickle.loads(data)
    return entry


def _read(source: SourceFile, entry: _Entry | str) -> Read | Problem:
    """An entry under the path that its text has now."""
    if isinstance(entry, str):
        return Problem(source.path, entry)
    facts, suppressions = entry
    if suppressions.problems:
        problems = tuple(Problem(source.path, problem.message) for problem in suppressions.problems)
        suppressions = Suppressions(suppressions.by_line, problems)
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

    def read(self, sources: Sequence[SourceFile], step: str = "reading") -> list[Read | Problem]:
        """The facts of every file, in the order given."""
        known = {source.path: load_entry(source.digest) for source in sources} if self.use_cache else {}
        entries: dict[str, _Entry | str] = {path: one for path, one in known.items() if _is_entry(one)}
        missing = [source for source in sources if source.path not in entries]
        self._tell(step, len(entries), len(sources))
        for path, entry in self._extract_all(missing):
            entries[path] = entry
            self._tell(step, len(entries), len(sources))
        return [_read(source, entries[source.path]) for source in sources]

    def _extract_all(self, sources: Sequence[SourceFile]) -> Iterator[tuple[str, _Entry | str]]:
        if self.jobs == 1 or len(sources) < _WORTH_A_POOL:
            for source in sources:
                yield source.path, _extracted(source, self.use_cache)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.jobs, initializer=gc.disable)
        # The longest first, so that no worker is left with a long one at the end.
        ordered = sorted(sources, key=lambda source: len(source.text), reverse=True)
        count = -(-len(ordered) // _CHUNK)
        chunks = [(ordered[start::count], self.use_cache) for start in range(count)]
        for results in self._pool.map(_extract_chunk, chunks):
            for path, data in results:
                yield path, data if isinstance(data, str) else _loads(data)

    def _tell(self, step: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(step, done, total)


def _extract_chunk(chunk: tuple[Sequence[SourceFile], bool]) -> list[tuple[str, bytes | str]]:
    sources, use_cache = chunk
    return [(source.path, _extract(source, use_cache)) for source in sources]


def read_sources(paths: Sequence[Path]) -> tuple[list[SourceFile], list[Problem]]:
    """The texts of the files that can be read, and a problem for each other one."""
    read = [read_source(path) for path in paths]
    return [one for one in read if isinstance(one, SourceFile)], [one for one in read if isinstance(one, Problem)]
