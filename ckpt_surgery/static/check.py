"""`check`: run the rules on a tree of files, none of which is imported or run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter

from ckpt_surgery.static.cache import load_entry, store_entry
from ckpt_surgery.static.discover import (
    SourceFile,
    discover,
    imported_files,
    installed_layers,
    installed_models,
    read_sources,
    source_at,
    text_at,
)
from ckpt_surgery.static.notebooks import SUFFIX, in_cell
from ckpt_surgery.static.options import check_options
from ckpt_surgery.static.reading import gc_paused
from ckpt_surgery.static.requirements import required_transformers
from ckpt_surgery.static.results import CheckResult, Note, Progress
from ckpt_surgery.static.snapshot import RULE_CODES, line_length, select_codes, take_snapshot
from ckpt_surgery.static.suppress import without_ignored

_ENVIRONMENT = "is a virtual environment and was left out: name it to have it checked"


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
            What a file imports from its own folder is checked too, as a script and its helpers are. The code cells
            of a named notebook are a script; the path of a finding there ends with its cell.
        select: rule codes (`"CKPT003"`); an empty `select` means all rules.
        ignore: rule codes that are left out.
        exclude: glob patterns of files and folders that a folder walk leaves out.
        per_file_ignores: glob patterns, each with the codes that are not reported there.
        include_unsupported: also look at models without `supports_gradient_checkpointing = True`.
        jobs: worker processes; None for one per core. Where they are not forked, a script that calls this needs an
            `if __name__ == "__main__":` guard, or `jobs=1`, which starts no process.
        cache: keep facts and results in the user's cache folder, keyed by the content of the files.
        progress: called as files are read.

    Raises:
        TransformersNotFound: `paths` is None and transformers is not installed.
        OptionError: a code that no rule has, no rule left, an empty path, or a value that an option does not take.
    """
    start = perf_counter()
    selected = select_codes(select, ignore)
    check_options(RULE_CODES, exclude=exclude, per_file_ignores=per_file_ignores, jobs=jobs)
    given = [installed_models()] if paths is None else [paths] if isinstance(paths, str | os.PathLike) else paths
    environments: list[str] = []
    files, problems = discover(given, exclude=exclude, environments=environments, notebooks=True)
    scripts = [path for path in map(Path, given) if path.suffix in (".py", SUFFIX) and os.path.isfile(path)]
    files += imported_files(scripts, files, exclude)
    sources, unreadable = read_sources(files)
    problems += unreadable
    key = _key(sources, scripts, selected, include_unsupported)
    result = _cached(key) if cache else None
    if result is None:
        with gc_paused():
            snapshot, unparsed = take_snapshot(
                sources, scripts, include_unsupported=include_unsupported, jobs=jobs, cache=cache, progress=progress
            )
            found, bugs = snapshot.findings_and_bugs(selected, include_unsupported)
            kept, suppressed = snapshot.unsuppressed(found, {})
        problems_here = (*unparsed, *chain.from_iterable(bugs.values()))
        result = CheckResult(tuple(kept), problems_here, len(sources), suppressed, 0, snapshot.notes)
        if cache and not bugs:
            store_entry(key, (result, _digests(snapshot.imported), snapshot.required))
    findings = without_ignored(result.findings, per_file_ignores or {})
    notebooks = {source.path: source.text for source in sources if source.path.endswith(SUFFIX)}
    findings = [in_cell(each, notebooks[each.path]) if each.path in notebooks else each for each in findings]
    left_out = () if files else tuple(Note(path, _ENVIRONMENT) for path in environments)
    return replace(
        result,
        findings=tuple(findings),
        notes=(*result.notes, *left_out),
        problems=(*problems, *result.problems),
        suppressed=result.suppressed + len(result.findings) - len(findings),
        seconds=perf_counter() - start,
    )


def _key(
    sources: Sequence[SourceFile], named: Sequence[Path], selected: frozenset[str], include_unsupported: bool
) -> str:
    """Return the cache key of a result: paths, contents, the place of transformers, and options that matter."""
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        digest.update(f"{source.path}\0{source.digest}\0".encode(errors="surrogateescape"))
    width = line_length(sources[0].path if sources else "")
    digest.update(f"{sorted(selected)} {include_unsupported} {width} {sorted(map(str, named))} ".encode())
    digest.update(os.fsencode(installed_layers()))
    return digest.hexdigest()


def _cached(key: str) -> CheckResult | None:
    """Return the cached result, if everything that it depends on outside the tree is unchanged."""
    match load_entry(key):
        case CheckResult() as result, dict() as imported, dict() as required:
            same = imported == _digests({path: source_at(path) for path in imported})
            if same and all(required_transformers(path, text_at) == said for path, said in required.items()):
                return result
    return None


def _digests(imported: Mapping[str, SourceFile | None]) -> dict[str, str | None]:
    return {path: source.digest if source else None for path, source in imported.items()}
