"""Find which families take classes from one another, by `# Copied from` comments and by modular inheritance."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ckpt_surgery.codemods.finding import RuleContext
from ckpt_surgery.codemods.providers.copies import COPIES, GENERATED_FROM
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.results import ApplyResult


class Dependency(NamedTuple):
    """A source family, and one that has a class from it: by a `# Copied from` comment, or by its modular file."""

    source: str
    dependent: str


def is_generated(context: RuleContext, path: str) -> bool:
    """Tell whether a file is generated from a modular one."""
    facts = context.tree.names.facts(path)
    return bool(facts and facts[GENERATED_FROM])


class ChangedFamilies:
    """The families that a repair changes, and the classes that they take from one another."""

    def __init__(self, context: RuleContext, result: ApplyResult) -> None:
        self.context = context
        self.changes = {change.path: change for change in result.changes}
        own = {family_of(path) for path in self.changes if not is_generated(context, path)}
        self.generated = [path for path in self.changes if family_of(path) not in own]
        """The files of families in which only generated files change."""
        self._changed_in: dict[str, set[str]] = {}

    def dependencies(self) -> frozenset[Dependency]:
        """Return the dependencies between them that concern changed classes."""
        changed = set(map(family_of, self.changes))
        return frozenset(
            Dependency(source, family_of(path))
            for path in self.changes
            for source in {*self._copied(path), *self._derived(path)}
            if source != family_of(path) and source in changed
        )

    def generated_only(self, edges: Collection[Dependency]) -> list[Dependency]:
        """Return the dependencies of families in which only generated files change."""
        dependents = set(map(family_of, self.generated))
        return [dependency for dependency in edges if dependency.dependent in dependents]

    def required_sources(self, repairable: Collection[str]) -> frozenset[str]:
        """Return the families that have to be repaired too, or the converter would revert the generated files."""
        sources = (family for path in self.generated for family in self._derived(path))
        return frozenset(family for family in sources if family in repairable)

    def _changed_classes(self, path: str) -> set[str]:
        """Return the classes of a file whose text the repair changes."""
        if path not in self._changed_in:
            change = self.changes[path]
            before, after = (
                {
                    node.name: ast.get_source_segment(text, node)
                    for node in ast.parse(text).body
                    if isinstance(node, ast.ClassDef)
                }
                for text in (change.before, change.after)
            )
            self._changed_in[path] = {name for name in before if before[name] != after.get(name)}
        return self._changed_in[path]

    def _copied(self, path: str) -> Iterator[str]:
        """Yield the families named by `# Copied from` comments on or inside the changed classes of a file."""
        names = self.context.tree.names
        spans = [ref.cls.span for ref in names.classes(path) if ref.name in self._changed_classes(path)]
        facts = names.facts(path)
        for copy in facts[COPIES] if facts else ():
            if any(span.line <= copy.span.line <= span.end_line for span in spans):
                parts = copy.source.split(".")
                if parts[0] == "models" and len(parts) > 2:
                    yield parts[2 if parts[1] == "deprecated" else 1]

    def _derived(self, path: str) -> Iterator[str]:
        """Yield the families that the changed classes of a file inherit from, through modular files."""
        tree = self.context.tree
        for ref in tree.names.classes(path):
            if ref.name not in self._changed_classes(path):
                continue
            for twin in tree.lineages.same(ref):
                if Path(twin.path).name.startswith("modular_") or twin.path == path:
                    yield from (family_of(base.path) for base in tree.bases.lineage(twin))
