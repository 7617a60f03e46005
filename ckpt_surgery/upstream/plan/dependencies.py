"""Tell which families have classes of one another, by `# Copied from` comments and by modular inheritance."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ckpt_surgery.codemods.finding import RuleContext
from ckpt_surgery.codemods.providers.copies import COPIES, GENERATED_FROM
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.results import ApplyResult, FileChange


class Dependency(NamedTuple):
    """A family, and another with a class from it: by a `# Copied from` comment, or through its modular file."""

    source: str
    dependent: str


def is_generated(context: RuleContext, path: str) -> bool:
    """Tell whether a file is generated from a modular one."""
    facts = context.tree.names.facts(path)
    return bool(facts and facts[GENERATED_FROM])


def dependencies(context: RuleContext, result: ApplyResult) -> frozenset[Dependency]:
    """Return which changed families have changed classes of one another."""
    classes: dict[str, set[str]] = defaultdict(set)
    for change in result.changes:
        classes[change.path] |= _changed_classes(change)
    changed = {family_of(path) for path in classes}
    return frozenset(
        Dependency(source, family_of(path))
        for path, names in classes.items()
        for source in {*_copied(context, path, names), *_derived(context, path, names)}
        if source != family_of(path) and source in changed
    )


def generated_only(context: RuleContext, result: ApplyResult, edges: Collection[Dependency]) -> list[Dependency]:
    """Return the dependencies of families in which only generated files change."""
    dependents = {family_of(change.path) for change in _of_generated_families(context, result)}
    return [dependency for dependency in edges if dependency.dependent in dependents]


def required_sources(context: RuleContext, result: ApplyResult, repairable: Collection[str]) -> frozenset[str]:
    """Return the families without whose repair that of a generated file would be overwritten by the converter."""
    return frozenset(
        family
        for change in _of_generated_families(context, result)
        for family in _derived(context, change.path, _changed_classes(change))
        if family in repairable
    )


def _of_generated_families(context: RuleContext, result: ApplyResult) -> list[FileChange]:
    """Return the changes of families in which only generated files change."""
    own = {family_of(change.path) for change in result.changes if not is_generated(context, change.path)}
    return [change for change in result.changes if family_of(change.path) not in own]


def _changed_classes(change: FileChange) -> set[str]:
    """Return the classes whose text a change touches."""
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
    """Yield the families that `# Copied from` comments on these classes, or inside them, name."""
    spans = [ref.cls.span for ref in context.tree.names.classes(path) if ref.name in classes]
    facts = context.tree.names.facts(path)
    for copy in facts[COPIES] if facts else ():
        if any(span.line <= copy.span.line <= span.end_line for span in spans):
            parts = copy.source.split(".")
            if parts[0] == "models" and len(parts) > 2:
                yield parts[2 if parts[1] == "deprecated" else 1]


def _derived(context: RuleContext, path: str, classes: Collection[str]) -> Iterator[str]:
    """Yield the families that these classes come from by modular inheritance."""
    for ref in context.tree.names.classes(path):
        if ref.name not in classes:
            continue
        for twin in context.tree.lineages.same(ref):
            if Path(twin.path).name.startswith("modular_") or twin.path == path:
                yield from (family_of(base.path) for base in context.tree.bases.lineage(twin))
