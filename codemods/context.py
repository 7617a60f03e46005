"""What every rule decides on: one tree of files, and how a finding about a place in it is made."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ckpt_surgery.codemods.declaration import Declaration
from ckpt_surgery.codemods.facts.file_facts import Span
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.codemods.scripts.script_facts import ScriptFacts, Spot
from ckpt_surgery.codemods.tree.arguments import Meaning
from ckpt_surgery.codemods.tree.blocks import Blocks
from ckpt_surgery.codemods.tree.classes import Ref
from ckpt_surgery.codemods.tree.index import TreeIndex
from ckpt_surgery.codemods.tree.lineages import Lineages
from ckpt_surgery.model_patches import family_facts, family_of


@dataclass(slots=True)
class Context:
    """One tree under the rules: its index, its blocks and the texts that edits are made from."""

    tree: TreeIndex
    width: int = 119
    """The tree's line length: transformers' own unless its pyproject.toml says otherwise."""
    include_unsupported: bool = False
    selected: Collection[str] = ()
    """Codes of the rules that run; edits of one rule never make those of another."""
    blocks: Blocks = field(init=False)
    lineages: Lineages = field(init=False)
    _sources: dict[str, SourceText] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocks = Blocks(self.tree)
        self.lineages = Lineages(self.tree)

    def source(self, path: str) -> SourceText:
        """A file's text with its positions."""
        if path not in self._sources:
            self._sources[path] = SourceText(self.tree.text(path))
        return self._sources[path]

    def _column(self, path: str, span: Span) -> int:
        """The column in characters, from 1; `ast` counts bytes."""
        if self.tree.text(path).isascii():
            return span.column + 1
        source = self.source(path)
        start = source.offset(span.line, span.column)
        return start - source.line_start(start) + 1

    def meaning(self, block: Ref) -> Meaning:
        """What the parameters of a block's forward mean: its own family's facts."""
        return Meaning(block.name, family_facts(block.path))

    def scripts(self) -> Iterator[tuple[str, ScriptFacts]]:
        """The checked files that are training scripts, and what they say as such."""
        for path in self.tree.checked:
            script = self.tree.files[path].script
            if script:
                yield path, script

    def script_finding(
        self,
        rule: Declaration,
        path: str,
        spot: Spot,
        message: str,
        applicability: Applicability | None = None,
        edits: tuple[Edit, ...] = (),
    ) -> Finding:
        """A finding about a place in a training script; it is about the function there."""
        return self.finding(rule, path, spot.span, spot.scope, message, applicability, edits, spot.first_line)

    def finding(
        self,
        rule: Declaration,
        path: str,
        span: Span,
        class_name: str,
        message: str,
        applicability: Applicability | None = None,
        edits: tuple[Edit, ...] = (),
        first_line: int = 0,
    ) -> Finding:
        """A finding at a span, as applicable as it says or as the rule declares of all its findings.

        `first_line` is where its statement or decorated class begins; by default the line of the span.

        Raises:
            ValueError: neither the finding nor its rule says how applicable it is.
        """
        applicability = applicability or rule.applicability
        if applicability is None:
            raise ValueError(f"{rule.code} declares no applicability, so each of its findings has to name one")
        return Finding(
            code=rule.code,
            path=path,
            line=span.line,
            column=self._column(path, span),
            class_name=class_name,
            message=message,
            applicability=applicability,
            family=family_of(path),
            edits=edits,
            first_line=first_line or span.line,
        )
