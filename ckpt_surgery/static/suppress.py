"""Which findings the reader asked not to see: `# ckpt: ignore[CKPT003] reason` and per-file ignores.

A comment counts on the line of the finding, or alone on the line above it. Without codes it means all rules.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.static.discover import matches
from ckpt_surgery.static.results import Problem

_MARK = re.compile(r"#\s*ckpt:\s*ignore(?![\w-])\s*(?P<list>\[(?P<codes>[^\]]*)(?P<end>\]?))?")
_ALL_RULES = "*"


@dataclass(frozen=True, slots=True)
class Suppressions:
    """The suppressing comments of one file: the codes by line, and what is wrong with a comment."""

    by_line: Mapping[int, frozenset[str]]
    problems: tuple[Problem, ...] = ()

    def covers(self, finding: Finding) -> bool:
        """Whether a comment asks not to report this finding (of the same file)."""
        none: frozenset[str] = frozenset()
        codes = self.by_line.get(finding.line, none) | self.by_line.get(finding.first_line, none)
        return finding.code in codes or _ALL_RULES in codes


NO_SUPPRESSIONS = Suppressions({})


def read_suppressions(text: str, path: str, known: Collection[str]) -> Suppressions:
    """Read the suppressing comments of a file. `known` are the rule codes that exist.

    Only comments count, never strings that look like one; the text is tokenized only where it could
    matter. A code that no rule has, or a bracket left open, becomes a `Problem` and suppresses nothing.
    """
    if "ckpt:" not in text:
        return NO_SUPPRESSIONS
    by_line: dict[int, frozenset[str]] = {}
    problems: list[Problem] = []
    for line, comment in _marked_comments(text):
        codes, trouble = _codes(comment, known)
        if codes:
            by_line[line] = by_line.get(line, frozenset()) | codes
        if trouble:
            problems.append(Problem(path, f"line {line}: {trouble}"))
    return Suppressions(by_line, tuple(problems))


def without_ignored(
    findings: Iterable[Finding], per_file_ignores: Mapping[str, Collection[str]]
) -> tuple[list[Finding], int]:
    """The findings that per-file ignores leave, and how many they took.

    Args:
        findings: of any files, in any order; the order is kept.
        per_file_ignores: glob pattern (as `discover.matches` reads it) to the exact codes ignored there.
    """
    kept: list[Finding] = []
    taken = 0
    codes_of: dict[str, frozenset[str]] = {}
    for finding in findings:
        if finding.path not in codes_of:
            fitting = [codes for pattern, codes in per_file_ignores.items() if matches(finding.path, (pattern,))]
            codes_of[finding.path] = frozenset().union(*fitting)
        if finding.code in codes_of[finding.path]:
            taken += 1
        else:
            kept.append(finding)
    return kept, taken


def _marked_comments(text: str) -> Iterator[tuple[int, str]]:
    """Each comment that speaks to us, with the line it is about: its own, or the next line of code."""
    waiting: list[str] = []
    code_on_line = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.COMMENT:
                if _MARK.search(token.string) is None:
                    continue
                if code_on_line:
                    yield token.start[0], token.string
                else:
                    waiting.append(token.string)
            elif token.type in (tokenize.NL, tokenize.NEWLINE):
                code_on_line = False
                if not token.line.strip():
                    waiting.clear()  # a blank line parts a comment from the code below it
            elif token.type not in (tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
                for comment in waiting:
                    yield token.start[0], comment
                waiting.clear()
                code_on_line = True
    except (tokenize.TokenError, SyntaxError):
        return  # the parser reports a file that does not parse


def _codes(comment: str, known: Collection[str]) -> tuple[frozenset[str], str]:
    """The codes that a comment names and, where there is something wrong, one sentence about it."""
    found: set[str] = set()
    unknown: list[str] = []
    for mark in _MARK.finditer(comment):
        if mark["list"] is None:
            found.add(_ALL_RULES)
            continue
        if not mark["end"]:
            return frozenset(), "the bracket of `ckpt: ignore[` is not closed"
        codes = [code.strip().upper() for code in mark["codes"].split(",") if code.strip()]
        if not codes:
            return frozenset(), "`ckpt: ignore[]` names no rule: name one, or leave the brackets out for all"
        found.update(code for code in codes if code in known)
        unknown.extend(code for code in codes if code not in known)
    if unknown:
        return frozenset(found), f"no rule has the code {', '.join(unknown)}: `ckpt_surgery rule` lists them"
    return frozenset(found), ""
