"""One state of a tree: its texts and facts, and what the rules find in them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.launch_facts import CONFIGURATION_SUFFIXES
from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.codemods.tree.source_tree import LINE_LENGTH, SourceTree
from ckpt_surgery.errors import OptionError
from ckpt_surgery.static.discover import SourceFile, folders_above, installed_layers, read_source
from ckpt_surgery.static.options import check_codes
from ckpt_surgery.static.reading import FileParser, ParsedFile, parse_file
from ckpt_surgery.static.requirements import required_transformers
from ckpt_surgery.static.results import Problem, Progress
from ckpt_surgery.static.suppress import without_ignored

RULE_CODES = tuple(rule.code for rule in RULES)
_FOLDERS_ABOVE = 6


@dataclass(slots=True)
class Snapshot:
    """The checked files, and the files outside of them that their imports lead to."""

    sources: dict[str, SourceFile]
    parsed: dict[str, ParsedFile]
    use_cache: bool
    imported: dict[str, SourceFile | None] = field(default_factory=dict)
    """Files that are not checked, read to understand those that are; None for one that cannot be read."""

    def load(self, path: str) -> FileFacts | None:
        """The facts of a file that an import leads to, outside the checked ones."""
        read = read_source(path) if os.path.isfile(path) else None
        source = read if isinstance(read, SourceFile) else None
        self.imported[path] = source
        if source is None:
            return None
        parsed = parse_file(source, use_cache=self.use_cache)
        return parsed.facts if isinstance(parsed, ParsedFile) else None

    def text(self, path: str) -> str:
        """The text of a checked or imported file."""
        source = self.sources.get(path) or self.imported.get(path)
        return source.text if source else ""

    def configuration(self, path: str, name: str) -> str | None:
        """The text of a configuration file that a script names; None where it is not found or cannot be read.

        Names are relative to the folder of the script or to one above it, as far up as its repository. All places that
        were tried become part of what the result depends on.
        """
        if PurePath(name).is_absolute() or not name.endswith(CONFIGURATION_SUFFIXES):
            return None
        for folder in folders_above(path, _FOLDERS_ABOVE):
            place = os.path.normpath(folder / name)
            text = self._beside(place)
            if text is not None or os.path.isfile(place):
                return text
        return None

    def required(self, path: str) -> tuple[str, ...]:
        """The requirements on transformers of the package that a file is in."""
        return required_transformers(path, self._beside)

    def _beside(self, path: str) -> str | None:
        """The text of a file that is no source; the result depends on it, or on its absence."""
        if path not in self.imported:
            read = read_source(path) if os.path.isfile(path) else None
            self.imported[path] = read if isinstance(read, SourceFile) else None
        source = self.imported[path]
        return source.text if source else None

    def context(self, selected: Collection[str], include_unsupported: bool) -> RuleContext:
        """The rules' view of these files."""
        facts = {path: parsed.facts for path, parsed in self.parsed.items()}
        width = line_length(next(iter(facts))) if facts else LINE_LENGTH
        tree = SourceTree(facts, self.load, self.text, width, self.configuration, installed_layers(), self.required)
        repairs = {rule.argument_repair for rule in RULES if rule.code in selected and rule.argument_repair}
        return RuleContext(tree, include_unsupported, selected, repairs)

    def findings(self, context: RuleContext) -> list[Finding]:
        """What the selected rules find, sorted by place."""
        findings = [finding for rule in RULES if rule.code in context.selected for finding in rule.find(context)]
        return sorted(findings, key=lambda finding: finding.sort_key)

    def unsuppressed(
        self, findings: Sequence[Finding], per_file_ignores: Mapping[str, Collection[str]]
    ) -> tuple[list[Finding], int]:
        """The findings that no comment and no per-file ignore suppresses, and how many are suppressed."""
        kept = [finding for finding in findings if not self.parsed[finding.path].suppressions.covers(finding)]
        left, ignored = without_ignored(kept, per_file_ignores) if per_file_ignores else (kept, 0)
        return left, len(findings) - len(kept) + ignored


def take_snapshot(
    sources: Sequence[SourceFile], *, jobs: int | None, cache: bool, progress: Progress | None
) -> tuple[Snapshot, list[Problem]]:
    """Parse the files; a file that does not parse is a problem."""
    parsed: dict[str, ParsedFile] = {}
    problems: list[Problem] = []
    with FileParser(jobs, use_cache=cache, progress=progress) as parser:
        for result in parser.parse(sources):
            if isinstance(result, Problem):
                problems.append(result)
            else:
                parsed[result.path] = result
                problems.extend(result.suppressions.problems)
    return Snapshot({source.path: source for source in sources}, parsed, cache), problems


def select_codes(select: str | Collection[str], ignore: str | Collection[str]) -> frozenset[str]:
    """The codes of the rules to run. One code may be given as it is.

    Raises:
        OptionError: a code that no rule has, or no rule is left.
    """
    select = [select] if isinstance(select, str) else select
    ignore = [ignore] if isinstance(ignore, str) else ignore
    check_codes({*select, *ignore}, RULE_CODES)
    selected = frozenset(select or RULE_CODES) - frozenset(ignore)
    if not selected:
        raise OptionError("ignore leaves no rule to check: ignore fewer, or select others")
    return selected


def line_length(path: str) -> int:
    """The line length that the tree's own pyproject.toml asks ruff for; that of transformers if it names none."""
    for folder in Path(path).resolve().parents:
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
                return int(tools.get("ruff", {}).get("line-length", LINE_LENGTH))
            except (OSError, ValueError, AttributeError, TypeError):
                return LINE_LENGTH
    return LINE_LENGTH
