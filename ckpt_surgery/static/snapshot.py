"""One state of a tree: its texts, its facts, and what the rules find in them."""

from __future__ import annotations

import os
import tomllib
import traceback
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.launch_facts import CONFIGURATION_SUFFIXES
from ckpt_surgery.codemods.finding import Finding, RuleContext
from ckpt_surgery.codemods.rules.inline_checkpoint import RULE as INLINE
from ckpt_surgery.codemods.tree.source_tree import LINE_LENGTH, SourceTree
from ckpt_surgery.codemods.worth import worth_parsing
from ckpt_surgery.errors import OptionError
from ckpt_surgery.static.discover import SourceFile, folders_above, installed_layers, source_at, text_at
from ckpt_surgery.static.options import check_codes
from ckpt_surgery.static.reading import FileParser, ParsedFile, parse_file
from ckpt_surgery.static.requirements import required_transformers
from ckpt_surgery.static.results import Note, Problem, Progress
from ckpt_surgery.static.suppress import Suppressions, may_be_suppressed, without_ignored

RULE_CODES = tuple(rule.code for rule in RULES)
_FOLDERS_ABOVE = 6
"""How far above a script configuration files are looked for."""
_MOST_FAILURES = 10
"""A rule that fails at more files is not run again."""


@dataclass(slots=True)
class Snapshot:
    """The checked files, and the files outside of them that findings depend on."""

    files: dict[str, ParsedFile]
    use_cache: bool
    unparsed: Mapping[str, SourceFile]
    """Checked files that need no parsing, unless a name in another file leads to them."""
    imported: dict[str, SourceFile | None] = field(default_factory=dict)
    """Files that are not checked, read to understand those that are; None for one that cannot be read."""
    required: dict[str, dict[str, str]] = field(default_factory=dict)
    """What the packages of files require of transformers, as far as rules asked for it."""
    notes: tuple[Note, ...] = ()
    """Remarks on files that were left out, although nothing is wrong with them."""

    @property
    def width(self) -> int:
        """The line length of the tree."""
        return line_length(next(iter(self.files), ""))

    def text(self, path: str) -> str:
        """Return the text of a checked or imported file, as it was read."""
        file = self.files.get(path) or self.unparsed.get(path) or self.imported.get(path)
        return file.text if file else ""

    def context(
        self,
        selected: Collection[str],
        include_unsupported: bool,
        unchecked: Collection[str] = (),
        named: Collection[str] = (),
    ) -> RuleContext:
        """Return the rules' view of these files. Those that are `unchecked` are only read to understand the others.

        `named` are the codes of the rules that were selected by name.
        """
        facts = {path: file.facts for path, file in self.files.items() if path not in unchecked}
        layers = installed_layers()
        tree = SourceTree(
            facts,
            self._facts,
            self.text,
            self.width,
            self._configuration,
            layers,
            self._required,
            self.unparsed,
            converts=INLINE.code in named,
        )
        repairs = {rule.argument_repair for rule in RULES if rule.code in selected and rule.argument_repair}
        return RuleContext(tree, include_unsupported, selected, repairs, named)

    def findings(self, context: RuleContext) -> list[Finding]:
        """Return what the selected rules find, sorted by place. An error in one of them is raised."""
        found = (finding for rule in RULES if rule.code in context.selected for finding in rule.find(context))
        return sorted(found, key=lambda finding: finding.sort_key)

    def findings_and_bugs(
        self, selected: Collection[str], include_unsupported: bool, named: Collection[str] = ()
    ) -> tuple[list[Finding], dict[str, list[Problem]]]:
        """Return what the selected rules find, and their failures by code; all other files are still checked."""
        context = self.context(selected, include_unsupported, named=named)
        findings: list[Finding] = []
        bugs: dict[str, list[Problem]] = defaultdict(list)
        for rule in RULES:
            failed: list[str] = []
            while rule.code in selected:
                try:
                    view = self.context(selected, include_unsupported, failed, named) if failed else context
                    findings += list(rule.find(view))
                    break
                except Exception as error:
                    path = self._place_of(error, failed)
                    bugs[rule.code].append(Problem.bug(path or rule.code, rule.code if path else "it", error))
                    if not path or len(failed) == _MOST_FAILURES:
                        break
                    failed.append(path)
        return sorted(findings, key=lambda finding: finding.sort_key), bugs

    def _place_of(self, error: Exception, failed: Collection[str]) -> str:
        """Find the checked file at which a rule failed, by the variables in the traceback; empty if none is there.

        The innermost frame comes first: a question about one file may make the rule look at all of them.
        """
        for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
            if frame.f_code is not Snapshot.findings_and_bugs.__code__:
                for value in frame.f_locals.values():
                    path = getattr(value, "path", value)
                    if isinstance(path, str) and path in self.files and path not in failed:
                        return path
        return ""

    def unsuppressed(
        self, findings: Sequence[Finding], per_file_ignores: Mapping[str, Collection[str]]
    ) -> tuple[list[Finding], int]:
        """Return the findings that no comment and no per-file ignore suppresses, and how many are suppressed."""
        comments = {path: Suppressions.of(self.text(path), RULE_CODES) for path in {f.path for f in findings}}
        uncovered = [finding for finding in findings if not comments[finding.path].covers(finding)]
        kept = without_ignored(uncovered, per_file_ignores)
        return kept, len(findings) - len(kept)

    def _imported(self, path: str) -> SourceFile | None:
        if path not in self.imported:
            self.imported[path] = source_at(path)
        return self.imported[path]

    def _facts(self, path: str) -> FileFacts | None:
        """Return the facts of a file that an import leads to and that was not parsed yet."""
        source = self.unparsed.get(path) or self._imported(path)
        parsed = parse_file(source, use_cache=self.use_cache) if source else None
        if not isinstance(parsed, ParsedFile):
            return None
        if parsed.older:
            self.imported[path] = replace(parsed.source, text=parsed.older)
        return parsed.facts

    def _required(self, path: str) -> dict[str, str]:
        if path not in self.required:
            self.required[path] = required_transformers(path, text_at)
        return self.required[path]

    def _configuration(self, path: str, name: str) -> str | None:
        """Return the text of a configuration file that a script names; None where it cannot be read.

        Names are relative to the folder of the script or to one above it, as far up as its repository. All places that
        were tried become part of what the result depends on.
        """
        if PurePath(name).is_absolute() or not name.endswith(CONFIGURATION_SUFFIXES):
            return None
        for folder in folders_above(path, _FOLDERS_ABOVE):
            place = os.path.normpath(folder / name)
            source = self._imported(place)
            if source or os.path.isfile(place):
                return source.text if source else None
        return None


def take_snapshot(
    sources: Sequence[SourceFile],
    given: Iterable[Path] = (),
    *,
    include_unsupported: bool = True,
    jobs: int | None,
    cache: bool,
    progress: Progress | None,
) -> tuple[Snapshot, list[Problem]]:
    """Parse the files; one that does not parse is a problem, and so is a wrong `ckpt: ignore` comment.

    Without `include_unsupported`, only files are parsed in which something may be found or ignored, and those that
    were `given` by name.
    """
    parsed = sources
    if not include_unsupported:
        worth = worth_parsing({source.path: source.text for source in sources})
        named = frozenset(given)
        parsed = [
            source
            for source in sources
            if source.path in worth or may_be_suppressed(source.text) or Path(source.path) in named
        ]
    files: dict[str, ParsedFile] = {}
    problems: list[Problem] = []
    notes: list[Note] = []
    for source, result in zip(parsed, FileParser(jobs, progress).parse(parsed, use_cache=cache), strict=True):
        if isinstance(result, Problem):
            problems.append(result)
        elif isinstance(result, Note):
            notes.append(result)
        else:
            files[source.path] = result
            problems += [Problem(source.path, wrong) for wrong in Suppressions.of(result.text, RULE_CODES).mistakes]
    looked_at = {source.path for source in parsed}
    unparsed = {source.path: source for source in sources if source.path not in looked_at}
    return Snapshot(files, cache, unparsed, notes=tuple(notes)), problems


def select_codes(select: str | Collection[str], ignore: str | Collection[str]) -> frozenset[str]:
    """Return the codes of the rules to run. A single code may be given as a string.

    Raises:
        OptionError: a code that no rule has, or no rule is left.
    """
    select, ignore = ([codes] if isinstance(codes, str) else codes for codes in (select, ignore))
    check_codes({*select, *ignore}, RULE_CODES)
    selected = frozenset(select or RULE_CODES) - frozenset(ignore)
    if not selected:
        raise OptionError("ignore leaves no rule to check: ignore fewer, or select others")
    return selected


def line_length(path: str) -> int:
    """Return the line length that the tree's own pyproject.toml asks ruff for, else that of transformers."""
    file = next(
        (file for folder in Path(path).resolve().parents if (file := folder / "pyproject.toml").is_file()), None
    )
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}) if file else {}
        return int(tools.get("ruff", {}).get("line-length", LINE_LENGTH))
    except (OSError, ValueError, AttributeError, TypeError):
        return LINE_LENGTH
