"""`check`: the rules over a tree of files. Nothing that is read is imported or run."""

from __future__ import annotations

import hashlib
import pickle
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.codemods.tree.source_tree import LINE_LENGTH, SourceTree
from ckpt_surgery.static.cache import Read, Reader, load_entry, read_one, read_sources, store_entry, without_gc
from ckpt_surgery.static.discover import SourceFile, discover, installed_models, read_source
from ckpt_surgery.static.results import CheckResult, Problem, Progress
from ckpt_surgery.static.suppress import without_ignored


@dataclass(slots=True)
class Snapshot:
    """The files of one analysis: their texts and facts, and those loaded beside them to understand them."""

    sources: dict[str, SourceFile]
    reads: dict[str, Read]
    use_cache: bool
    beside: dict[str, SourceFile | None] = field(default_factory=dict)

    def load(self, path: str) -> FileFacts | None:
        """A file that an import leads to, outside the checked ones."""
        source = read_source(path) if Path(path).is_file() else None
        known = source if isinstance(source, SourceFile) else None
        self.beside[path] = known
        if known is None:
            return None
        read = read_one(known, use_cache=self.use_cache)
        return read.facts if isinstance(read, Read) else None

    def text(self, path: str) -> str:
        """The text of a checked file or of one loaded beside it."""
        source = self.sources.get(path) or self.beside.get(path)
        return source.text if source else ""

    def context(self, selected: Collection[str], include_unsupported: bool) -> RuleContext:
        """The rules' view of these files."""
        facts = {path: read.facts for path, read in self.reads.items()}
        width = line_length(next(iter(facts))) if facts else LINE_LENGTH
        tree = SourceTree(facts, self.load, self.text, width)
        repairs = {rule.argument_repair for rule in RULES if rule.code in selected and rule.argument_repair}
        return RuleContext(tree, include_unsupported, selected, repairs)

    def findings(self, context: RuleContext) -> list[Finding]:
        """What the selected rules find, sorted by place."""
        found = [finding for rule in RULES if rule.code in context.selected for finding in rule.find(context)]
        return sorted(found, key=lambda finding: finding.sort_key)

    def unsuppressed(
        self, findings: Sequence[Finding], per_file_ignores: Mapping[str, Collection[str]]
    ) -> tuple[list[Finding], int]:
        """The findings that no comment and no per-file ignore takes, and how many are taken."""
        kept = [f for f in findings if not self.reads[f.path].suppressions.covers(f)]
        left, ignored = without_ignored(kept, per_file_ignores) if per_file_ignores else (kept, 0)
        return left, len(findings) - len(kept) + ignored


def check(
    paths: Sequence[str | Path] | None = None,
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    exclude: Collection[str] = (),
    per_file_ignores: Mapping[str, Collection[str]] | None = None,
    include_unsupported: bool = False,
    jobs: int | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> CheckResult:
    """Find out where gradient checkpointing does not work, without importing or running anything.

    Args:
        paths: files, folders, or a transformers checkout; None for the installed transformers' models.
        select: rule codes (`"CKPT003"`); nothing selected means all rules.
        ignore: rule codes that are left out.
        exclude: glob patterns of files and folders that a folder walk leaves out.
        per_file_ignores: glob pattern to the codes that are not reported there.
        include_unsupported: also look at models without `supports_gradient_checkpointing = True`.
        jobs: worker processes; None for one a core.
        cache: keep what files say in the user's cache folder, keyed by their content.
        progress: called as files are read.

    Raises:
        TransformersNotFound: `paths` is None and transformers is not installed.
        ValueError: a code that no rule has.
    """
    start = perf_counter()
    files, problems = discover([installed_models()] if paths is None else paths, exclude=exclude)
    sources, unreadable = read_sources(files)
    problems += unreadable
    selected = selection(select, ignore)
    key = _key(sources, selected, include_unsupported)
    known = _recall(key) if cache else None
    if known is None:
        with without_gc():
            snapshot, unparsed = take(sources, jobs=jobs, cache=cache, progress=progress)
            found = snapshot.findings(snapshot.context(selected, include_unsupported))
            kept, taken = snapshot.unsuppressed(found, {})
            known = _Outcome(tuple(kept), tuple(unparsed), _beside(snapshot), taken)
        if cache:
            store_entry(key, pickle.dumps(known, protocol=pickle.HIGHEST_PROTOCOL))
    findings, ignored = without_ignored(known.findings, per_file_ignores or {})
    return CheckResult(
        findings=tuple(findings),
        problems=(*problems, *known.problems),
        files=len(sources),
        suppressed=known.suppressed + ignored,
        seconds=perf_counter() - start,
    )


def selection(select: Collection[str], ignore: Collection[str]) -> frozenset[str]:
    """The codes of the rules to run.

    Raises:
        ValueError: a code that no rule has.
    """
    known = [rule.code for rule in RULES]
    unknown = sorted({*select, *ignore} - {*known})
    if unknown:
        raise ValueError(f"no rule has the code {', '.join(unknown)}: the codes are {', '.join(known)}")
    return frozenset(select or known) - frozenset(ignore)


def take(
    sources: Sequence[SourceFile], *, jobs: int | None, cache: bool, progress: Progress | None
) -> tuple[Snapshot, list[Problem]]:
    """Read all facts of some files."""
    reads: dict[str, Read] = {}
    problems: list[Problem] = []
    with Reader(jobs, use_cache=cache, progress=progress) as reader:
        for one in reader.read(sources):
            if isinstance(one, Problem):
                problems.append(one)
            else:
                reads[one.path] = one
                problems.extend(one.suppressions.problems)
    return Snapshot({source.path: source for source in sources}, reads, cache), problems


def line_length(path: str) -> int:
    """The line length that the tree's own pyproject.toml asks ruff for; that of transformers where it names none."""
    for folder in Path(path).resolve().parents:
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
                return int(tools.get("ruff", {}).get("line-length", LINE_LENGTH))
            except (OSError, ValueError, AttributeError, TypeError):
                return LINE_LENGTH
    return LINE_LENGTH


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A whole run's findings, and the digests of the files beside the checked ones that they depend on."""

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    beside: tuple[tuple[str, str], ...]
    suppressed: int = 0


def _key(sources: Sequence[SourceFile], selected: frozenset[str], include_unsupported: bool) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        digest.update(f"{source.path}\0{source.digest}\0".encode(errors="surrogateescape"))
    width = line_length(sources[0].path) if sources else LINE_LENGTH
    digest.update(f"{sorted(selected)} {include_unsupported} {width}".encode())
    return digest.hexdigest()


def _beside(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    return tuple((path, source.digest if source else "") for path, source in snapshot.beside.items())


def _recall(key: str) -> _Outcome | None:
    """The outcome of the same run, where every file that it depended on is as it was."""
    known = load_entry(key)
    if not isinstance(known, _Outcome):
        return None
    for path, digest in known.beside:
        source = read_source(path) if Path(path).is_file() else None
        if (source.digest if isinstance(source, SourceFile) else "") != digest:
            return None
    return known
