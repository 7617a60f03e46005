"""Remove an inline checkpoint branch: its else branch takes its place, with needed guards and comments."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from ckpt_surgery.codemods.edits import paths
from ckpt_surgery.codemods.edits.arguments import joined
from ckpt_surgery.codemods.repair import Occurrence

_CONSTANTS = ("None", "True", "False")
_CHECKPOINTING = re.compile(r"checkpointing|(?:gradient|activation)[ _-]checkpoint|use_reentrant", re.I)
_STAND_IN = re.compile(r"#\s*None for \w+\W*$", re.I)
"""A comment on a `None` that a branch passes instead of past state."""
_FOR_TOOLS = re.compile(r"#\s*(?:type:|noqa\b|fmt:|yapf:|isort:|ruff:|mypy:|pyright:|pylint:|pragma:|nosec\b)")
_ADVICE = re.compile(
    r"\b(?:not|never|only|must|should|cannot|incompatible|todo|fixme|xxx|note|warning|bug|hack|see)\b|n't\b|https?:",
    re.I,
)


@dataclass
class RemoveInlineBranch(paths.ModuleTransformer):
    """Replaces an `if` by its else branch.

    `guards` are the positions of the statements in its body that stay under the `if`. Comments in removed code go
    above the statements that move out, unless these repeat them, or they are about the branch.
    """

    target: Occurrence
    guards: Collection[int] = field(default=(), kw_only=True)
    width: int = field(kw_only=True)

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, branch = paths.occurrence_in(tree, self.target, cst.If, "if")
        holder, other = around[-1], branch.orelse
        if not isinstance(other, cst.Else) or not isinstance(holder, cst.IndentedBlock):
            raise paths.PlaceError("an elif, an if at module level or one with no else branch of its own stays")
        body = other.body
        if isinstance(body, cst.SimpleStatementSuite):
            line = cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace)
            body = cst.IndentedBlock([line])
        block = cst.ensure_type(body, cst.IndentedBlock)
        kept: list[cst.If] = []  # the branch with nothing but its guards
        if self.guards and isinstance(branch.body, cst.IndentedBlock):
            guards = [statement for at, statement in enumerate(branch.body.body) if at in self.guards]
            kept = [branch.with_changes(body=branch.body.with_changes(body=guards, footer=()), orelse=None)]
        margin = paths.margin_of(around, tree.default_indent)
        first, *rest = block.body
        first = first.with_changes(leading_lines=_without_announcement(paths.leading_lines(first)))
        moved = [joined(old, margin, tree.default_indent, self.width) for old in (first, *rest)]
        above = [cst.EmptyLine(indent=False)] if kept else _without_announcement(branch.leading_lines)
        lost = [*above, *_lost(branch, other.leading_lines, block, kept)]
        at = holder.body.index(branch)
        after = holder.body[at + 1 :]
        statements = [*holder.body[:at], *kept, *_below(lost, moved), *_below(block.footer, after)]
        footer = [*([] if after else block.footer), *holder.footer]
        return paths.replaced(around[:-1], holder, holder.with_changes(body=statements, footer=footer))


def _lost(
    branch: cst.If, above: Sequence[cst.EmptyLine], block: cst.IndentedBlock, kept: Collection[cst.If]
) -> list[cst.EmptyLine]:
    """Return the comments from the `if` to its `else:` that would be lost with the branch."""
    staying = [block.body, block.footer, *(part for guard in kept for part in (guard.test, guard.body))]
    repeated = {line for part in staying for paragraph in _paragraphs(part) for line in paragraph}
    going = [branch.test, branch.whitespace_after_test, branch.body, *above, block.header]
    lost: dict[str, None] = {}
    for paragraph in (paragraph for part in going for paragraph in _paragraphs(part)):
        if not _CHECKPOINTING.search(paragraph[0]):  # if the first line mentions it, the paragraph goes
            lines = [line for line in paragraph if not (_STAND_IN.match(line) or _FOR_TOOLS.match(line))]
            lost |= dict.fromkeys(line for line in lines if line not in repeated)
    return [cst.EmptyLine(comment=cst.Comment(text)) for text in lost]


def _below(lines: Sequence[cst.EmptyLine], statements: Sequence[cst.BaseStatement]) -> Sequence[cst.BaseStatement]:
    """Return the statements with these lines above the first one and its own leading lines."""
    if not statements:
        return ()
    first, *rest = statements
    return [first.with_changes(leading_lines=[*lines, *paths.leading_lines(first)]), *rest]


def _without_announcement(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Return the lines above a statement, without a comment right above it that only announces checkpointing."""
    above = list(lines)
    first = next((at for at in range(len(above), 0, -1) if above[at - 1].comment is None), 0)
    texts = [line.comment.value for line in above[first:] if line.comment]
    return above[:first] if all(_CHECKPOINTING.search(text) and not _ADVICE.search(text) for text in texts) else above


def _paragraphs(part: cst.CSTNode | Sequence[cst.CSTNode]) -> Iterator[list[str]]:
    """Yield the comments in some code, consecutive lines together, except those after constant arguments."""
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
