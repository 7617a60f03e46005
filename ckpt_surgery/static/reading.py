"""Turn texts into facts, in worker processes or from the cache, before and after repairs."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.codemods.repairs.parts import Part, by_part
from ckpt_surgery.static.cache import load_entry, store_entry
from ckpt_surgery.static.discover import SourceFile
from ckpt_surgery.static.newer import as_older
from ckpt_surgery.static.results import Note, Problem, Progress

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_POOL_THRESHOLD = 24
"""Fewer files than this are read here in less time than a pool of processes takes to start."""
_CHUNK = 4


class ParsedFile(NamedTuple):
    """A file and its facts. `older` is the text that was parsed if the file's own needs a newer Python."""

    source: SourceFile
    facts: FileFacts
    older: str = ""

    @property
    def text(self) -> str:
        """The text that its facts describe; its lines and columns are those of the file."""
        return self.older or self.source.text

    def rewritten_parts(self, repairs: Collection[SourceRepair]) -> list[tuple[Part, str]] | None:
        """Return the parts of the file that repairs are made in, and their new text; None if one cannot be made."""
        from ckpt_surgery.codemods.edits.rewrite import rewritten  # needs libcst, which loads slowly

        text = self.source.text
        made: list[tuple[Part, str]] = []
        for part, of_part in by_part(text, self.facts, repairs).items():
            after = rewritten(part.before + text[part.start : part.end] + part.after, of_part, part.step)
            if after is None:
                return None
            made.append((part, after.removeprefix(part.before).removesuffix(part.after)))
        return made


_Reading: TypeAlias = tuple[FileFacts, str] | Problem | Note
"""The facts of a file, and the parsed text if it is not the file's own; or why there are none."""


def parse_file(source: SourceFile, *, use_cache: bool) -> ParsedFile | Problem | Note:
    """Return the facts of one file, from the cache if possible; a note if it needs a newer Python."""
    reading = (_cached(source) if use_cache else None) or _extracted(source, use_cache)
    return ParsedFile(source, *reading) if isinstance(reading, tuple) else reading


def _cached(source: SourceFile) -> tuple[FileFacts, str] | None:
    facts = load_entry(source.digest)
    return (facts, "") if isinstance(facts, FileFacts) else None


def _extracted(source: SourceFile, use_cache: bool) -> _Reading:
    try:
        facts = extract(source.text)
    except SyntaxError as error:
        older = as_older(source.text)
        if older is None:
            return Problem(
                source.path, f"line {error.lineno or 1} does not parse ({error.msg}): not checked; correct it"
            )
        if older == source.text:
            running = ".".join(map(str, sys.version_info[:2]))
            return Note(
                source.path, f"needs a newer Python than {running}, which runs here: not checked", error.lineno or 1
            )
        reading = _extracted(replace(source, text=older), use_cache=False)
        return (reading[0], reading[1] or older) if isinstance(reading, tuple) else reading
    except (RecursionError, MemoryError) as error:
        return Problem(source.path, f"is too deep to be read ({type(error).__name__}): not checked")
    except Exception as error:
        return Problem.bug(source.path, "reading it", error)
    if use_cache:
        store_entry(source.digest, facts)
    return facts, ""


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection, which costs more than all else among so many small long-lived objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class FileParser:
    """Parses and rewrites files with up to `jobs` processes, which start only if there is enough to do."""

    jobs: int | None
    progress: Progress | None

    def parse(self, sources: Sequence[SourceFile], *, use_cache: bool) -> list[ParsedFile | Problem | Note]:
        """Return the facts of every file, in the order given."""
        cached = {source.path: facts for source in sources if use_cache and (facts := _cached(source))}
        missing = [source for source in sources if source.path not in cached]
        # The longest first, so that no worker is left with a long one at the end.
        missing.sort(key=lambda source: len(source.text), reverse=True)
        extracted = partial(_extracted, use_cache=use_cache)
        read = {source.path: facts for source, facts in self._each("reading", extracted, missing, len(cached))}
        readings = [cached.get(source.path) or read[source.path] for source in sources]
        return [
            ParsedFile(source, *reading) if isinstance(reading, tuple) else reading
            for source, reading in zip(sources, readings, strict=True)
        ]

    def rewrite(
        self, files: Mapping[str, ParsedFile], repairs: Mapping[str, Collection[SourceRepair]]
    ) -> dict[str, ParsedFile | Problem | None]:
        """Return the files after their repairs; None if one cannot be made, or the text then does not parse."""
        ordered = sorted(repairs, key=lambda path: len(files[path].source.text), reverse=True)
        items = [(files[path], [*repairs[path]]) for path in ordered]
        return {file.source.path: result for (file, _), result in self._each("rewriting", _rewritten, items)}

    def _each(
        self, step: str, function: Callable[[_Item], _Result], items: Sequence[_Item], done: int = 0
    ) -> Iterator[tuple[_Item, _Result]]:
        """Yield each item and what a function makes of it, in worker processes if there are many."""
        jobs = self.jobs or os.cpu_count() or 1
        many = jobs > 1 and len(items) >= _POOL_THRESHOLD
        pool = ProcessPoolExecutor(jobs, initializer=gc.disable) if many else None
        report = self.progress or (lambda step, done, total: None)
        report(step, done, done + len(items))
        try:
            results = _mapped(pool, function, items) if pool else map(function, items)
            for number, pair in enumerate(zip(items, results, strict=True), done + 1):
                yield pair
                report(step, number, done + len(items))
        finally:
            if pool:
                pool.shutdown(cancel_futures=True)


def _mapped(
    pool: ProcessPoolExecutor, function: Callable[[_Item], _Result], items: Sequence[_Item]
) -> Iterator[_Result]:
    """Yield the results of worker processes; if one of them dies or cannot answer, compute the rest here."""
    done = 0
    try:
        for result in pool.map(function, items, chunksize=_CHUNK):
            done += 1
            yield result
    except Exception:
        yield from map(function, items[done:])


def _rewritten(item: tuple[ParsedFile, Collection[SourceRepair]]) -> ParsedFile | Problem | None:
    source = item[0].source
    try:
        parts = item[0].rewritten_parts(item[1])
    except Exception as error:
        return Problem.bug(source.path, "repairing it", error)
    if parts is None:
        return None
    text = source.text
    for part, after in reversed(parts):
        text = text[: part.start] + after + text[part.end :]
    parsed = parse_file(replace(source, text=text, digest=""), use_cache=False)
    return parsed if isinstance(parsed, ParsedFile) else None
