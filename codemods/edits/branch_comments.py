"""Which comments go with an inline branch: those that speak of it, and those for tools about one of its lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import inside

_CONSTANTS = ("None", "True", "False")
_SUBJECT = re.compile(r"checkpointing|(?:gradient|activation)[ _-]checkpoint|use_reentrant", re.I)
_STAND_IN = re.compile(r"#\s*None for \w+\W*$", re.I)
"""What a branch passes instead of past state."""
_FOR_TOOLS = re.compile(r"#\s*(?:type:|noqa\b|fmt:|yapf:|isort:|ruff:|mypy:|pyright:|pylint:|pragma:|nosec\b)")
_ADVICE = re.compile(
    r"\b(?:not|never|only|must|should|cannot|incompatible|todo|fixme|xxx|note|warning|bug|hack|see)\b|n't\b|https?:",
    re.I,
)


def left_of(parts: Collection[cst.CSTNode | Sequence[cst.CSTNode]]) -> Iterator[str]:
    """The comments in code that goes, without those that go with it.

    Of lines that follow each other, all go where the first one speaks of checkpointing. So does a comment behind a
    constant argument: it says what that stands for.
    """
    for part in parts:
        for paragraph in _paragraphs(part):
            if not _SUBJECT.search(paragraph[0]):
                yield from (line for line in paragraph if not (_STAND_IN.match(line) or _FOR_TOOLS.match(line)))


def without_announcement(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """The lines above a statement, without a comment right above it that announces checkpointing, and nothing else."""
    above = list(lines)
    first = next((at for at in range(len(above), 0, -1) if above[at - 1].comment is None), 0)
    texts = [line.comment.value for line in above[first:] if line.comment]
    return above[:first] if all(_SUBJECT.search(text) and not _ADVICE.search(text) for text in texts) else above


def without_stand_in(lines: Sequence[cst.EmptyLine], statement: cst.CSTNode) -> list[cst.EmptyLine]:
    """The lines above a statement of the else branch, without a `# None for ...` where it passes no None."""
    if any(name.value == "None" for _, name in inside((statement,), cst.Name)):
        return list(lines)
    return [line for line in lines if line.comment is None or not _STAND_IN.match(line.comment.value)]


def comments(part: cst.CSTNode | Sequence[cst.CSTNode]) -> Iterator[str]:
    """The comments in some code, but for those behind a constant argument."""
    return (line for paragraph in _paragraphs(part) for line in paragraph)


def _paragraphs(part: cst.CSTNode | Sequence[cst.CSTNode]) -> Iterator[list[str]]:
    """The same, those on lines that follow each other together."""
    if isinstance(part, cst.Comment):
        yield [part.value]
    if isinstance(part, cst.Arg) and isinstance(part.value, cst.Name) and part.value.value in _CONSTANTS:
        return
    lines: list[str] = []
    for inner in part.children if isinstance(part, cst.CSTNode) else part:
        if isinstance(inner, cst.EmptyLine) and inner.comment:
            lines.append(inner.comment.value)
            continue
        if lines:
            yield lines
            lines = []
        yield from _paragraphs(inner)
    if lines:
        yield lines
