"""Texts to facts, in worker processes or from the cache: what each file says, as it is and after repairs."""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeGuard, TypeVar

from ckpt_surgery import codemods
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.codemods.repairs.parts import Part
from ckpt_surgery.static.cache import load_entry, store_entry
from ckpt_surgery.static.discover import SourceFile
from ckpt_surgery.static.results import Problem, Progress
from ckpt_surgery.static.suppress import NO_SUPPRESSIONS, Suppressions, read_suppressions

_CachedFacts: TypeAlias = tuple[FileFacts, Suppressions]
Rewriting: TypeAlias = tuple[SourceFile, Mapping[Part, Sequence[SourceRepair]]]
"""A file, and the repairs to make in each part of its text."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_POOL_THRESHOLD = 24
"""Fewer files than this are read faster in this process than a pool of processes starts."""
_CHUNK = 12


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """What one file says, and which findings its comments suppress. `digest` is that of its bytes."""

    path: str
    digest: str
    facts: FileFacts
    suppressions: Suppressions = NO_SUPPRESSIONS


@dataclass(frozen=True, slots=True)
class _Unparsed:
    """Why a text has no facts."""

    reason: str


_NOT_MADE = _Unparsed("a repair of it cannot be made")


def parse_file(source: SourceFile, *, use_cache: bool) -> ParsedFile | Problem:
    """The facts of one file's text, from the cache if it has them."""
    cached = load_entry(source.digest) if use_cache else None
    return _parsed(source, cached if _is_entry(cached) else _unpickled(_extract(source, use_cache)))


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection: among so many small objects that live long it costs more than all else."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class FileParser:
    """Parses files with up to `jobs` processes, which start only if there is enough to do."""

    def __init__(self, jobs: int | None, *, use_cache: bool, progress: Progress | None) -> None:
        self.jobs = jobs or os.cpu_count() or 1
        self.use_cache = use_cache
        self.progress = progress
        self._pool: Executor | None = None

    def __enter__(self) -> FileParser:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def parse(self, sources: Sequence[SourceFile], step: str = "reading") -> list[ParsedFile | Problem]:
        """The facts of every file, in the order given."""
        entries: dict[str, _CachedFacts | _Unparsed] = {}
        if self.use_cache:
            cached = {source.path: load_entry(source.digest) for source in sources}
            entries = {path: entry for path, entry in cached.items() if _is_entry(entry)}
        missing = [source for source in sources if source.path not in entries]
        self._report(step, len(entries), len(sources))
        for path, data in self._extract_all(missing):
            entries[path] = _unpickled(data)
            self._report(step, len(entries), len(sources))
        return [_parsed(source, entries[source.path]) for source in sources]

    def rewrite(self, files: Sequence[Rewriting]) -> list[tuple[SourceFile, ParsedFile | Problem]]:
        """Every file after its repairs and what it says then, in the order given; as it was where a repair fails."""
        results: dict[str, tuple[SourceFile, ParsedFile | Problem]] = {}
        sources = {source.path: source for source, _ in files}
        for chunk in self._map(_rewrite_chunk, sorted(files, key=lambda file: len(file[0].text), reverse=True)):
            for path, text, data in chunk:
                source = replace(sources[path], text=text, digest="")
                results[path] = source, _parsed(source, _unpickled(data))
            self._report("rewriting", len(results), len(files))
        return [results[source.path] for source, _ in files]

    def tidy(self, files: Sequence[Rewriting]) -> list[tuple[SourceFile, Problem | None]]:
        """Every file after its repairs, or a problem where one fails or the text does not parse: no facts are read."""
        sources = {source.path: source for source, _ in files}
        results: list[tuple[SourceFile, Problem | None]] = []
        for chunk in self._map(_tidy_chunk, files):
            for path, text, failed in chunk:
                problem = Problem(path, failed.reason) if failed else None
                results.append((replace(sources[path], text=text, digest=""), problem))
        return results

    def _extract_all(self, sources: Sequence[SourceFile]) -> Iterator[tuple[str, bytes | _Unparsed]]:
        # The longest first, so that no worker is left with a long one at the end.
        ordered = sorted(sources, key=lambda source: len(source.text), reverse=True)
        for results in self._map(partial(_extract_chunk, use_cache=self.use_cache), ordered):
            yield from results

    def _map(self, function: Callable[[Sequence[_Item]], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
        """What a function makes of the items, some at a time, in worker processes if there are many."""
        count = -(-len(items) // _CHUNK)
        chunks = [items[start::count] for start in range(count)]
        if self.jobs == 1 or len(items) < _POOL_THRESHOLD:
            yield from map(function, chunks)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.jobs, initializer=gc.disable)
        yield from self._pool.map(function, chunks)

    def _report(self, step: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(step, done, total)


def rewritten_parts(text: str, repairs: Mapping[Part, Sequence[SourceRepair]]) -> list[tuple[Part, str]] | None:
    """What takes the place of each part of a text; None where a repair cannot be made."""
    from ckpt_surgery.codemods.edits.rewrite import rewritten  # libcst: only where something is to be rewritten

    made: list[tuple[Part, str]] = []
    for part in repairs:
        after = rewritten(part.before + text[part.start : part.end] + part.after, repairs[part], part.step)
        if after is None:
            return None
        made.append((part, after.removeprefix(part.before).removesuffix(part.after)))
    return made


def _rewritten(source: SourceFile, repairs: Mapping[Part, Sequence[SourceRepair]]) -> str | None:
    """The text of a file after its repairs; None where one cannot be made."""
    parts = rewritten_parts(source.text, repairs)
    text = source.text
    for part, after in reversed(parts or ()):
        text = text[: part.start] + after + text[part.end :]
    return None if parts is None else text


def _rewrite_chunk(chunk: Sequence[Rewriting]) -> list[tuple[str, str, bytes | _Unparsed]]:
    """The text of each file after its repairs, and its pickled entry."""
    results: list[tuple[str, str, bytes | _Unparsed]] = []
    for source, repairs in chunk:
        text = _rewritten(source, repairs)
        data = _NOT_MADE if text is None else _extract(replace(source, text=text, digest=""), False)
        results.append((source.path, source.text if text is None else text, data))
    return results


def _tidy_chunk(chunk: Sequence[Rewriting]) -> list[tuple[str, str, _Unparsed | None]]:
    """The text of each file after its repairs, and why it has none."""
    results: list[tuple[str, str, _Unparsed | None]] = []
    for source, repairs in chunk:
        text = _rewritten(source, repairs)
        failed = _NOT_MADE if text is None else _syntax_error(text)
        results.append((source.path, source.text if text is None else text, failed))
    return results


def _extract_chunk(sources: Sequence[SourceFile], use_cache: bool) -> list[tuple[str, bytes | _Unparsed]]:
    return [(source.path, _extract(source, use_cache)) for source in sources]


def _syntax_error(text: str) -> _Unparsed | None:
    try:
        ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        return _unparsed(error)
    return None


def _unparsed(error: Exception) -> _Unparsed:
    if isinstance(error, SyntaxError):
        return _Unparsed(f"line {error.lineno or 1} does not parse ({error.msg}): not checked; correct it")
    return _Unparsed(f"is too deep for Python's parser ({type(error).__name__}): not checked")


def _extract(source: SourceFile, use_cache: bool) -> bytes | _Unparsed:
    """The pickled entry of a text: pickled once, for the cache and for the way between processes."""
    try:
        facts = extract(source.text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        return _unparsed(error)
    suppressions = read_suppressions(source.text, source.path, [rule.code for rule in codemods.RULES])
    data = pickle.dumps((facts, suppressions), protocol=pickle.HIGHEST_PROTOCOL)
    if use_cache:
        store_entry(source.digest, data)
    return data


def _unpickled(data: bytes | _Unparsed) -> _CachedFacts | _Unparsed:
    if isinstance(data, _Unparsed):
        return data
    entry: _CachedFacts = pickle.loads(data)
    return entry


def _is_entry(cached: object) -> TypeGuard[_CachedFacts]:
    return isinstance(cached, tuple) and tuple(map(type, cached)) == (FileFacts, Suppressions)


def _parsed(source: SourceFile, entry: _CachedFacts | _Unparsed) -> ParsedFile | Problem:
    """An entry under the path that its text has now."""
    if isinstance(entry, _Unparsed):
        return Problem(source.path, entry.reason)
    facts, suppressions = entry
    if suppressions.problems:
        problems = tuple(Problem(source.path, problem.message) for problem in suppressions.problems)
        suppressions = Suppressions(suppressions.by_line, problems)
    return ParsedFile(source.path, source.digest, facts, suppressions)
