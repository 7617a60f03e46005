"""Calls of blocks, resolved: which block classes a call may run, and what is wrong with its arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ckpt_surgery.codemods.context import Context
from ckpt_surgery.codemods.declaration import Declaration
from ckpt_surgery.codemods.edits.call_edit import call_edit
from ckpt_surgery.codemods.facts.file_facts import Call, Forward, Path, Span
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.tree.arguments import Piece, Plan, plan
from ckpt_surgery.codemods.tree.classes import Answer, Ref


@dataclass(frozen=True, slots=True)
class Site:
    """A call of a block. `blocks` are the classes that it may run, each with the forward it has."""

    owner: Ref
    call: Call
    blocks: tuple[tuple[Ref, Forward], ...]


def block_refs(context: Context, owner: Ref, paths: Iterable[Path]) -> tuple[Ref, ...]:
    """The classes of the tree that stand at some paths."""
    found: dict[Ref, None] = {}
    for path in paths:
        for target in context.tree.reached(owner, path):
            if isinstance(target, Ref):
                found[target] = None
    return tuple(found)


def sites(context: Context) -> Iterator[Site]:
    """Every call of a layer, or of a block that is to become one."""
    for owner in context.tree.checked_refs():
        for call in owner.cls.calls:
            site = site_of(context, owner, call)
            if site:
                yield site


def site_of(context: Context, owner: Ref, call: Call, becoming: Collection[Ref] = ()) -> Site | None:
    """A call of a layer, or of a block that is to become one; those of `becoming` are."""
    refs = [ref for ref in block_refs(context, owner, call.paths) if ref in becoming or checkpoints(context, ref)]
    blocks = tuple((ref, found[1]) for ref in refs if (found := context.tree.forward(ref)))
    return Site(owner, call, blocks) if blocks else None


def checkpoints(context: Context, ref: Ref) -> bool:
    """Whether a class is a layer, or a plain block that should be one."""
    return context.tree.is_layer(ref) is Answer.YES or ref in context.blocks.plain


def plan_site(context: Context, site: Site, *, gradient: bool, past: bool) -> Plan:
    """The plan for a site; with several block classes, one that is right for each of them."""
    plans = [
        plan(site.call.args, forward, context.meaning(ref), gradient=gradient, past=past)
        for ref, forward in site.blocks
    ]
    layouts = {one.pieces for one in plans}
    if len(layouts) > 1:
        names = ", ".join(ref.name for ref, _ in site.blocks)
        first = next(one for one in plans if one.pieces is not None)
        return Plan(
            first.keyword_gradient,
            first.positional_past,
            first.blocked,
            first.containers,
            unknown=f"its blocks ({names}) have different signatures",
        )
    return plans[0]


def site_finding(
    context: Context,
    site: Site,
    rule: Declaration,
    message: str,
    applicability: Applicability | None = None,
    *,
    span: Span | None = None,
    pieces: tuple[Piece, ...] | None = None,
) -> Finding:
    """A finding about a call: at the argument's `span`, or at the call; `pieces` are the repair."""
    edits = (call_edit(context, site.owner.path, site.call.span, pieces),) if pieces else ()
    return context.finding(
        rule,
        site.owner.path,
        span or site.call.span,
        site.owner.name,
        message,
        applicability,
        edits,
        site.call.statement.line,
    )
