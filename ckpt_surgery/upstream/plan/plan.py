"""What a series repairs, decided before anything is written: which families, in which commits, in which order.

Reads source only. All paths that leave this module are relative to the top of the checkout.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Literal

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.rules import plain_block
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.discover import discover, read_sources
from ckpt_surgery.static.reading import gc_paused
from ckpt_surgery.static.results import ApplyResult, FileChange, Progress
from ckpt_surgery.static.snapshot import select_codes, take_snapshot
from ckpt_surgery.upstream.plan.layout import MODELS, deprecated_of, families_of

Grouping = Literal["family", "root", "all"]
_FAULTS = (Applicability.SAFE, Applicability.UNSAFE)
Tie = tuple[str, str]
"""A family, and one that has a class from it: as a `# Copied from` copy, or through its modular file."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One commit: a family, or several whose repairs would each be half of one. The first gives it its name.

    The lines of the `findings` are those of texts on the way to the repaired one.
    """

    families: tuple[str, ...]
    changes: tuple[FileChange, ...]
    findings: tuple[Finding, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(sorted({code for change in self.changes for code in change.codes}))

    @property
    def paths(self) -> frozenset[str]:
        """The files that the codemods change."""
        return frozenset(change.path for change in self.changes)

    def plain_blocks(self, family: str) -> tuple[str, ...]:
        """The classes of blocks of a family that become checkpointing layers."""
        found = (f for f in self.findings if f.code == plain_block.RULE.code and f.family == family)
        return tuple(sorted({finding.class_name for finding in found}))


@dataclass(frozen=True, slots=True)
class Group:
    """One series: its name, and its commits in order. `notes` are sentences of the codemods on the way."""

    name: str
    units: tuple[Unit, ...]
    notes: tuple[str, ...] = ()

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(family for unit in self.units for family in unit.families)


@dataclass(frozen=True, slots=True)
class Plan:
    """`findings` are those of the whole checkout; `generated` the files that modular ones make."""

    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]
    generated: frozenset[str]
    idle: tuple[str, ...]
    """Families that were asked for and that no codemod changes."""


def chosen_families(tree: Path, names: Collection[str]) -> frozenset[str]:
    """The families that these names mean; all that are not deprecated where none is given.

    Raises UpstreamError for a name that no model folder has.
    """
    known = families_of(tree)
    for name in names:
        if name not in known:
            near = get_close_matches(name.lower().replace("-", "_"), known, n=3)
            meant = f"did you mean {' or '.join(near)}?" if near else "names are folders of src/transformers/models"
            raise UpstreamError(f"--families: there is no model folder {name}: {meant}")
    return frozenset(names or set(known) - deprecated_of(tree))


def make_plan(
    tree: Path,
    families: Collection[str],
    codes: Collection[str],
    by: Grouping,
    *,
    copies_follow: bool,
    progress: Progress | None = None,
) -> Plan:
    """Decide what to repair in the checkout `tree`, whose files are as the base has them.

    `codes` are rules; none given means all. `copies_follow` says that the checkout has a script that brings
    `# Copied from` copies along.
    """
    files, _ = discover([tree / MODELS])
    sources, _ = read_sources(files)
    with gc_paused():
        snapshot, _ = take_snapshot(sources, jobs=None, cache=True, progress=progress)
        context = snapshot.context(select_codes(codes, ()), include_unsupported=False)
        found, _ = snapshot.unsuppressed(snapshot.findings(context), {})
        repairable = {finding.family for finding in found if finding.edits}
        decide = partial(_decided, tree, context, codes, repairable, copies_follow)
        draft = decide(families)
        groups = _grouped(draft, by)
        if by == "family" and len(groups) > 1:
            # each stands on the base by itself: what it copies or derives from is there as the base has it
            alone = [decide(group.families) for group in groups]
            groups = tuple(Group(group.name, one.units, one.notes) for group, one in zip(groups, alone, strict=True))
    generated = {path for path in context.tree.checked if _is_generated(context, path)}
    return Plan(
        groups=groups,
        findings=tuple(_inside(tree, finding) for finding in found if finding.applicability in _FAULTS),
        generated=frozenset(_relative(tree, path) for path in generated),
        idle=tuple(sorted(set(families) - {family for unit in draft.units for family in unit.families})),
    )


@dataclass(frozen=True, slots=True)
class _Decided:
    """What becomes of some families where nothing else changes: commits in order, and what ties them."""

    units: tuple[Unit, ...]
    ties: frozenset[Tie]
    notes: tuple[str, ...]


def _decided(
    tree: Path,
    context: RuleContext,
    codes: Collection[str],
    repairable: Collection[str],
    copies_follow: bool,
    families: Collection[str],
) -> _Decided:
    """The repairs of these families, and of those without which they would be generated away."""
    wanted, needed = frozenset[str](), frozenset(families)
    while needed - wanted:
        wanted |= needed
        result = apply(
            [tree / MODELS], unsafe=True, write=False, select=codes, families=wanted, copies_follow=copies_follow
        )
        needed = frozenset(_needed(context, result, repairable))
    ties = frozenset(_ties(context, result))
    units = _ordered(_units(tree, result, _generated_alone(context, result, ties)), ties)
    return _Decided(tuple(units), ties, tuple(note.replace(f"{tree}/", "") for note in result.notes))


def _relative(tree: Path, path: str) -> str:
    return Path(path).relative_to(tree).as_posix()


def _inside(tree: Path, finding: Finding) -> Finding:
    return replace(finding, path=_relative(tree, finding.path), message=finding.message.replace(f"{tree}/", ""))


# --- commits ----------------------------------------------------------------------------------------------


def _units(tree: Path, result: ApplyResult, links: Collection[Tie]) -> list[Unit]:
    """The changes, family by family, those together that one repair makes at once, and those that `links` join."""
    groups = _connected(
        {family_of(change.path) for change in result.changes},
        [*(tuple(map(family_of, paths)) for paths in result.together), *links],
    )
    made = []
    for families in groups:
        changes = [replace(c, path=_relative(tree, c.path)) for c in result.changes if family_of(c.path) in families]
        findings = [_inside(tree, f) for f in result.repaired if f.family in families]
        named = sorted({finding.family for finding in findings} & families)
        if changes:
            made.append(Unit((*named, *sorted(families - set(named))), tuple(changes), tuple(findings)))
    return made


def _connected(names: Iterable[str], links: Iterable[Sequence[str]]) -> list[frozenset[str]]:
    """The names in sets, those in one that a link joins; in order of their first names."""
    sets = {name: {name} for name in names}
    for link in links:
        joined: set[str] = set()
        for name in link:
            joined |= sets.get(name, {name})
        for name in joined:
            sets[name] = joined
    return sorted({frozenset(joined) for joined in sets.values()}, key=lambda one: min(one))


def _ordered(units: Sequence[Unit], ties: Collection[Tie]) -> list[Unit]:
    """The units with what others are copied or derived from first; by name where that leaves a choice."""
    waiting, done = sorted(units, key=lambda unit: unit.families), list[Unit]()
    while waiting:
        # where sources go round in a circle, the first name goes first
        ready = next((unit for unit in waiting if not _sources(unit, waiting, ties)), waiting[0])
        waiting.remove(ready)
        done.append(ready)
    return done


def _sources(unit: Unit, others: Iterable[Unit], ties: Collection[Tie]) -> list[Unit]:
    return [
        other
        for other in others
        if other is not unit and any((a, b) in ties for a in other.families for b in unit.families)
    ]


def _grouped(decided: _Decided, by: Grouping) -> tuple[Group, ...]:
    units, ties = decided.units, decided.ties
    if by == "all":
        return (Group("all", units, decided.notes),) if units else ()
    links = [] if by == "family" else ties
    names = {family for unit in units for family in unit.families}
    groups = []
    for families in _connected(names, [*links, *(unit.families for unit in units)]):
        members = tuple(unit for unit in units if unit.families[0] in families)
        name = members[0].families[0] if by == "family" else _root(families, ties) or members[0].families[0]
        # a note begins with the file that it is about
        notes = tuple(note for note in decided.notes if family_of(note.partition(":")[0]) in families)
        groups.append(Group(name, members, notes))
    return tuple(sorted(groups, key=lambda group: group.name))


def _root(families: Collection[str], ties: Collection[Tie]) -> str:
    """The family that most others have classes from; empty where none has."""
    heirs: Mapping[str, int] = {name: sum(source == name for source, _ in ties) for name in sorted(families)}
    best = max(heirs, key=lambda name: heirs[name])
    return best if heirs[best] else ""


# --- ties -------------------------------------------------------------------------------------------------


def _needed(context: RuleContext, result: ApplyResult, repairable: Collection[str]) -> Iterator[str]:
    """Families without whose repair that of a generated file would be generated away."""
    for change in _of_generated_families(context, result):
        sources = set(_derived(context, change.path, _changed_classes(change)))
        yield from sources & {*repairable}


def _generated_alone(context: RuleContext, result: ApplyResult, ties: Collection[Tie]) -> list[Tie]:
    """The ties of families that have no change of their own: all of it comes from where their classes come from."""
    alone = {family_of(change.path) for change in _of_generated_families(context, result)}
    return [(source, family) for source, family in ties if family in alone]


def _of_generated_families(context: RuleContext, result: ApplyResult) -> list[FileChange]:
    """The changes of families in which nothing but generated files changes."""
    own = {family_of(change.path) for change in result.changes if not _is_generated(context, change.path)}
    return [change for change in result.changes if family_of(change.path) not in own]


def _is_generated(context: RuleContext, path: str) -> bool:
    facts = context.tree.names.facts(path)
    return bool(facts and facts.generated_from)


def _ties(context: RuleContext, result: ApplyResult) -> Iterator[Tie]:
    """Which changed families have changed classes of one another."""
    touched: dict[str, set[str]] = defaultdict(set)
    for change in result.changes:
        touched[change.path] |= _changed_classes(change)
    changed = {family_of(path) for path in touched}
    for path, classes in touched.items():
        family = family_of(path)
        for source in {*_copied(context, path, classes), *_derived(context, path, classes)}:
            if source != family and source in changed:
                yield source, family


def _changed_classes(change: FileChange) -> set[str]:
    """The classes whose text a change touches."""
    before, after = (
        {
            node.name: ast.get_source_segment(text, node)
            for node in ast.parse(text).body
            if isinstance(node, ast.ClassDef)
        }
        for text in (change.before, change.after)
    )
    return {name for name in before if before[name] != after.get(name)}


def _copied(context: RuleContext, path: str, classes: Collection[str]) -> Iterator[str]:
    """The families that `# Copied from` comments on these classes, or inside them, name."""
    spans = [ref.cls.span for ref in context.tree.names.classes(path) if ref.name in classes]
    facts = context.tree.names.facts(path)
    for copy in facts.copies if facts else ():
        if any(span.line <= copy.span.line <= span.end_line for span in spans):
            parts = copy.source.split(".")
            if parts[0] == "models" and len(parts) > 2:
                yield parts[2 if parts[1] == "deprecated" else 1]


def _derived(context: RuleContext, path: str, classes: Collection[str]) -> Iterator[str]:
    """The families that these classes come from by modular inheritance."""
    for ref in context.tree.names.classes(path):
        if ref.name not in classes:
            continue
        for twin in context.tree.lineages.same(ref):
            if Path(twin.path).name.startswith("modular_") or twin.path == path:
                yield from (family_of(base.path) for base in context.tree.bases.chain(twin) if hasattr(base, "path"))
