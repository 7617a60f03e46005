"""Texts to facts, in worker processes or from the cache: what each file says, as it is and after repairs."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.codemods.repairs.parts import Part, by_part
from ckpt_surgery.static.cache import load_entry, store_entry
from ckpt_surgery.static.discover import SourceFile
from ckpt_surgery.static.results import Problem, Progress

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_POOL_THRESHOLD = 24
"""Fewer files than this are read faster in this process than a pool of processes starts."""
_CHUNK = 4


class ParsedFile(NamedTuple):
    """A file, and what it says."""

    source: SourceFile
    facts: FileFacts


def parse_file(source: SourceFile, *, use_cache: bool) -> ParsedFile | Problem:
    """What one file says, from the cache if it has that."""
    return _parsed(source, (_cached(source) if use_cache else None) or _extracted(source, use_cache))


def _parsed(source: SourceFile, facts: FileFacts | Problem) -> ParsedFile | Problem:
    return facts if isinstance(facts, Problem) else ParsedFile(source, facts)


def _cached(source: SourceFile) -> FileFacts | None:
    facts = load_entry(source.digest)
    return facts if isinstance(facts, FileFacts) else None


def _extracted(source: SourceFile, use_cache: bool) -> FileFacts | Problem:
    try:
        facts = extract(source.text)
    except SyntaxError as error:
        return Problem(source.path, f"line {error.lineno or 1} does not parse ({error.msg}): not checked; correct it")
    except (RecursionError, MemoryError, ValueError) as error:
        return Problem(source.path, f"is too deep for Python's parser ({type(error).__name__}): not checked")
    if use_cache:
        store_entry(source.digest, facts)
    return facts


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


@dataclass(frozen=True, slots=True)
class FileParser:
    """Parses and rewrites files with up to `jobs` processes, which start only if there is enough to do."""

    jobs: int | None
    progress: Progress | None

    def parse(self, sources: Sequence[SourceFile], *, use_cache: bool) -> list[ParsedFile | Problem]:
        """What every file says, in the order given."""
        cached = {source.path: facts for source in sources if use_cache and (facts := _cached(source))}
        missing = [source for source in sources if source.path not in cached]
        # The longest first, so that no worker is left with a long one at the end.
        missing.sort(key=lambda source: len(source.text), reverse=True)
        extracted = partial(_extracted, use_cache=use_cache)
        found = {source.path: facts for source, facts in self._each("reading", extracted, missing, len(cached))}
        return [_parsed(source, cached.get(source.path) or found[source.path]) for source in sources]

    def rewrite(
        self, files: Mapping[str, ParsedFile], repairs: Mapping[str, Collection[SourceRepair]]
    ) -> dict[str, ParsedFile | None]:
        """The files after their repairs; None where one cannot be made or the text does not parse then."""
        ordered = sorted(repairs, key=lambda path: len(files[path].source.text), reverse=True)
        items = [(files[path], [*repairs[path]]) for path in ordered]
        return {file.source.path: result for (file, _), result in self._each("rewriting", _rewritten, items)}

    def _each(
        self, step: str, function: Callable[[_Item], _Result], items: Sequence[_Item], done: int = 0
    ) -> Iterator[tuple[_Item, _Result]]:
        """Each item and what a function makes of it, in worker processes if there are many."""
        jobs = self.jobs or os.cpu_count() or 1
        many = jobs > 1 and len(items) >= _POOL_THRESHOLD
        pool = ProcessPoolExecutor(jobs, initializer=gc.disable) if many else None
        report = self.progress or (lambda step, done, total: None)
        report(step, done, done + len(items))
        try:
            results = pool.map(function, items, chunksize=_CHUNK) if pool else map(function, items)
            for number, pair in enumerate(zip(items, results, strict=True), done + 1):
                yield pair
                report(step, number, done + len(items))
        finally:
            if pool:
                pool.shutdown(cancel_futures=True)


def rewritten_parts(file: ParsedFile, repairs: Collection[SourceRepair]) -> list[tuple[Part, str]] | None:
    """The parts of a file that its repairs are made in, and what takes their place; None where one cannot be made."""
    from ckpt_surgery.codemods.edits.rewrite import rewritten  # libcst: only where something is to be rewritten

    text = file.source.text
    made: list[tuple[Part, str]] = []
    for part, of_part in by_part(text, file.facts, repairs).items():
        after = rewritten(part.before + text[part.start : part.end] + part.after, of_part, part.step)
        if after is None:
            return None
        made.append((part, after.removeprefix(part.before).removesuffix(part.after)))
    return made


def _rewritten(item: tuple[ParsedFile, Collection[SourceRepair]]) -> ParsedFile | None:
    parts = rewritten_parts(*item)
    if parts is None:
        return None
    source = item[0].source
    text = source.text
    for part, after in reversed(parts):
        text = text[: part.start] + after + text[part.end :]
    parsed = parse_file(replace(source, text=text, digest=""), use_cache=False)
    return parsed if isinstance(parsed, ParsedFile) else None
