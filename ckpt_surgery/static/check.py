"""`check`: the rules over a tree of files. Nothing that is read is imported or run."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.codemods.tree.source_tree import LINE_LENGTH
from ckpt_surgery.static.cache import load_entry, store_entry
from ckpt_surgery.static.discover import (
    SourceFile,
    discover,
    installed_layers,
    installed_models,
    read_source,
    read_sources,
)
from ckpt_surgery.static.options import check_options
from ckpt_surgery.static.reading import gc_paused
from ckpt_surgery.static.results import CheckResult, Problem, Progress
from ckpt_surgery.static.script_imports import imported_files
from ckpt_surgery.static.snapshot import RULE_CODES, Snapshot, line_length, select_codes, take_snapshot
from ckpt_surgery.static.suppress import without_ignored


def check(
    paths: str | Path | Sequence[str | Path] | None = None,
    *,
    select: str | Collection[str] = (),
    ignore: str | Collection[str] = (),
    exclude: Collection[str] = (),
    per_file_ignores: Mapping[str, Collection[str]] | None = None,
    include_unsupported: bool = False,
    jobs: int | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> CheckResult:
    """Find out where gradient checkpointing does not work, without importing or running anything.

    Args:
        paths: files, folders, or a transformers checkout, one or several; None for the installed transformers' models.
            What a file imports from its own folder is checked too, as a script and its helpers are.
        select: rule codes (`"CKPT003"`); an empty `select` means all rules.
        ignore: rule codes that are left out.
        exclude: glob patterns of files and folders that a folder walk leaves out.
        per_file_ignores: glob patterns, each with the codes that are not reported there.
        include_unsupported: also look at models without `supports_gradient_checkpointing = True`.
        jobs: worker processes; None for one per core. Where they are not forked, a script that calls this needs an
            `if __name__ == "__main__":` guard, or 1, which starts no process.
        cache: keep what files say in the user's cache folder, keyed by their content.
        progress: called as files are read.

    Raises:
        TransformersNotFound: `paths` is None and transformers is not installed.
        OptionError: a code that no rule has, no rule left, an empty path, or a value that an option does not take.
    """
    start = perf_counter()
    selected = select_codes(select, ignore)
    check_options(RULE_CODES, exclude=exclude, per_file_ignores=per_file_ignores, jobs=jobs)
    files, problems = discover([installed_models()] if paths is None else paths, exclude=exclude)
    files += imported_files(_named_files(paths), files, exclude)
    sources, unreadable = read_sources(files)
    problems += unreadable
    key = _key(sources, selected, include_unsupported)
    result = _load_result(key) if cache else None
    if result is None:
        with gc_paused():
            snapshot, unparsed = take_snapshot(sources, jobs=jobs, cache=cache, progress=progress)
            findings = snapshot.findings(snapshot.context(selected, include_unsupported))
            kept, suppressed = snapshot.unsuppressed(findings, {})
            result = _TreeResult(tuple(kept), tuple(unparsed), _imported_digests(snapshot), suppressed)
        if cache:
            store_entry(key, pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL))
    findings, ignored = without_ignored(result.findings, per_file_ignores or {})
    return CheckResult(
        findings=tuple(findings),
        problems=(*problems, *result.problems),
        files=len(sources),
        suppressed=result.suppressed + ignored,
        seconds=perf_counter() - start,
    )


def _named_files(paths: str | Path | Sequence[str | Path] | None) -> list[str]:
    named = [] if paths is None else [paths] if isinstance(paths, str | os.PathLike) else paths
    return [name for path in named if (name := os.fspath(path)).endswith(".py") and os.path.isfile(name)]


@dataclass(frozen=True, slots=True)
class _TreeResult:
    """The result for a whole tree, as it is cached.

    `imported` are the digests of the files outside the tree that it depends on; None for one that cannot be read.
    """

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    imported: tuple[tuple[str, str | None], ...]
    suppressed: int


def _key(sources: Sequence[SourceFile], selected: frozenset[str], include_unsupported: bool) -> str:
    """The cache key of a tree's result: paths, contents, where transformers is, and the options that decide."""
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        digest.update(f"{source.path}\0{source.digest}\0".encode(errors="surrogateescape"))
    width = line_length(sources[0].path) if sources else LINE_LENGTH
    digest.update(f"{sorted(selected)} {include_unsupported} {width} ".encode())
    digest.update(os.fsencode(installed_layers()))
    return digest.hexdigest()


def _imported_digests(snapshot: Snapshot) -> tuple[tuple[str, str | None], ...]:
    return tuple((path, source.digest if source else None) for path, source in snapshot.imported.items())


def _load_result(key: str) -> _TreeResult | None:
    """The cached result, if every file outside the tree that it depends on is as it was."""
    result = load_entry(key)
    if not isinstance(result, _TreeResult):
        return None
    return result if all(_digest(path) == digest for path, digest in result.imported) else None


def _digest(path: str) -> str | None:
    source = read_source(path) if os.path.isfile(path) else None
    return source.digest if isinstance(source, SourceFile) else None
