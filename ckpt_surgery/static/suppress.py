"""Suppressed findings: `# ckpt: ignore[CKPT003] reason` comments and per-file ignores.

A comment applies to the finding on its line or, standing alone, to the next line of code. Without codes it means
all rules.
"""

from __future__ import annotations

import contextlib
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.static.discover import matches

_MARK = re.compile(r"#\s*ckpt:\s*ignore(?![\w-])\s*(?P<list>\[(?P<codes>[^\]]*)(?P<end>\]?))?")
_ALL_RULES = "*"


@dataclass(frozen=True, slots=True)
class Suppressions:
    """The suppressing comments of one file: codes by line, and one sentence for each comment that is wrong."""

    by_line: Mapping[int, Collection[str]]
    mistakes: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, rule_codes: Collection[str]) -> Suppressions:
        """Read the suppressing comments of a file. `rule_codes` are the codes that exist.

        Only comments count, never strings that look like one; a text without `ckpt:` is not tokenized. A code that no
        rule has, or an unclosed bracket, is a mistake and suppresses nothing.
        """
        by_line: dict[int, set[str]] = defaultdict(set)
        mistakes: list[str] = []
        for line, comment in _marked_comments(text) if may_be_suppressed(text) else ():
            codes, mistake = _codes(comment, rule_codes)
            by_line[line] |= codes
            if mistake:
                mistakes.append(f"line {line}: {mistake}")
        return cls(dict(by_line), tuple(mistakes))

    def covers(self, finding: Finding) -> bool:
        """Tell whether a comment suppresses this finding of the same file."""
        codes = {*self.by_line.get(finding.line, ()), *self.by_line.get(finding.first_line, ())}
        return finding.code in codes or _ALL_RULES in codes


def may_be_suppressed(text: str) -> bool:
    """Tell whether a file may have a suppressing comment."""
    return "ckpt:" in text and _MARK.search(text) is not None


def without_ignored(findings: Sequence[Finding], per_file_ignores: Mapping[str, Collection[str]]) -> list[Finding]:
    """Return the findings that no per-file ignore applies to, in the same order.

    `per_file_ignores` are glob patterns, as `discover.matches` reads them, each with the exact codes ignored there.
    """
    ignored = {
        path: {code for pattern, codes in per_file_ignores.items() if matches(path, (pattern,)) for code in codes}
        for path in {finding.path for finding in findings}
    }
    return [finding for finding in findings if finding.code not in ignored[finding.path]]


def _marked_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield each comment with the mark, and the line it applies to: its own, or the next line of code."""
    lines = [*io.StringIO(text, newline=None).readlines(), ""]
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # the parser reports a file that does not parse
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type == tokenize.COMMENT and _MARK.search(token.string):
                line, column = token.start
                if not lines[line - 1][:column].strip():
                    while lines[line].lstrip().startswith("#"):
                        line += 1
                    line += 1
                if lines[line - 1].strip():  # a blank line separates a comment from the code below it
                    yield line, token.string


def _codes(comment: str, rule_codes: Collection[str]) -> tuple[set[str], str]:
    """Return the codes that a comment names, and what is wrong with it; empty if nothing is."""
    named: set[str] = set()
    unknown: list[str] = []
    for mark in _MARK.finditer(comment):
        codes = [code.strip().upper() for code in (mark["codes"] or "").split(",") if code.strip()]
        if mark["list"] and not mark["end"]:
            return set(), "the bracket of `ckpt: ignore[` is not closed"
        if mark["list"] and not codes:
            return set(), "`ckpt: ignore[]` names no rule: name one, or leave the brackets out for all"
        named |= {*codes}.intersection(rule_codes) if codes else {_ALL_RULES}
        unknown += [code for code in codes if code not in rule_codes]
    mistake = f"no rule has the code {', '.join(unknown)}: `ckpt_surgery rule` lists them" if unknown else ""
    return named, mistake
