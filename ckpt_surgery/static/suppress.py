"""Suppressed findings: `# ckpt: ignore[CKPT003] reason` comments and per-file ignores.

A comment applies to the finding on its line or, standing alone, to the next line of code. Without codes it means
all rules.
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
    """The suppressing comments of one file: codes by line, and a problem for each comment that is wrong."""

    by_line: Mapping[int, frozenset[str]]
    problems: tuple[Problem, ...] = ()

    def covers(self, finding: Finding) -> bool:
        """Whether a comment suppresses this finding of the same file."""
        nothing: frozenset[str] = frozenset()
        codes = self.by_line.get(finding.line, nothing) | self.by_line.get(finding.first_line, nothing)
        return finding.code in codes or _ALL_RULES in codes


NO_SUPPRESSIONS = Suppressions({})


def read_suppressions(text: str, path: str, rule_codes: Collection[str]) -> Suppressions:
    """Read the suppressing comments of a file. `rule_codes` are the codes that exist.

    Only comments count, never strings that look like one; a text without `ckpt:` is not tokenized. A code that no
    rule has, or an unclosed bracket, is a `Problem` and suppresses nothing.
    """
    if "ckpt:" not in text:
        return NO_SUPPRESSIONS
    by_line: dict[int, frozenset[str]] = {}
    problems: list[Problem] = []
    for line, comment in _marked_comments(text):
        codes, mistake = _codes(comment, rule_codes)
        if codes:
            by_line[line] = by_line.get(line, frozenset()) | codes
        if mistake is not None:
            problems.append(Problem(path, f"line {line}: {mistake}"))
    return Suppressions(by_line, tuple(problems))


def without_ignored(
    findings: Iterable[Finding], per_file_ignores: Mapping[str, Collection[str]]
) -> tuple[list[Finding], int]:
    """The findings that no per-file ignore applies to, and how many are ignored.

    Args:
        findings: of any files; their order is kept.
        per_file_ignores: glob patterns (as `discover.matches` reads them), each with the exact codes ignored there.
    """
    kept: list[Finding] = []
    ignored = 0
    codes_of: dict[str, frozenset[str]] = {}
    for finding in findings:
        if finding.path not in codes_of:
            matching = [codes for pattern, codes in per_file_ignores.items() if matches(finding.path, (pattern,))]
            codes_of[finding.path] = frozenset().union(*matching)
        if finding.code in codes_of[finding.path]:
            ignored += 1
        else:
            kept.append(finding)
    return kept, ignored


def _marked_comments(text: str) -> Iterator[tuple[int, str]]:
    """Each comment with the mark, and the line it applies to: its own, or the next line of code."""
    pending: list[str] = []
    code_on_line = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.COMMENT:
                if _MARK.search(token.string) is None:
                    continue
                if code_on_line:
                    yield token.start[0], token.string
                else:
                    pending.append(token.string)
            elif token.type in (tokenize.NL, tokenize.NEWLINE):
                code_on_line = False
                if not token.line.strip():
                    pending.clear()  # a blank line separates a comment from the code below it
            elif token.type not in (tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
                for comment in pending:
                    yield token.start[0], comment
                pending.clear()
                code_on_line = True
    except (tokenize.TokenError, SyntaxError):
        return  # the parser reports a file that does not parse


def _codes(comment: str, rule_codes: Collection[str]) -> tuple[frozenset[str], str | None]:
    """The codes that a comment names, and one sentence if something is wrong with it."""
    named: set[str] = set()
    unknown: list[str] = []
    for mark in _MARK.finditer(comment):
        if mark["list"] is None:
            named.add(_ALL_RULES)
            continue
        if not mark["end"]:
            return frozenset(), "the bracket of `ckpt: ignore[` is not closed"
        codes = [code.strip().upper() for code in mark["codes"].split(",") if code.strip()]
        if not codes:
            return frozenset(), "`ckpt: ignore[]` names no rule: name one, or leave the brackets out for all"
        named.update(code for code in codes if code in rule_codes)
        unknown.extend(code for code in codes if code not in rule_codes)
    if unknown:
        return frozenset(named), f"no rule has the code {', '.join(unknown)}: `ckpt_surgery rule` lists them"
    return frozenset(named), None
