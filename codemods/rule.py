"""What a rule is, and what all rules are given to decide on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from types import ModuleType

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

    def at(
        self,
        code: str,
        path: str,
        spot: Spot,
        message: str,
        applicability: Applicability,
        edits: tuple[Edit, ...] = (),
    ) -> Finding:
        """A finding about a place in a training script; it is about the function there."""
        return self.finding(code, path, spot.span, spot.scope, message, applicability, edits, spot.first_line)

    def finding(
        self,
        code: str,
        path: str,
        span: Span,
        class_name: str,
        message: str,
        applicability: Applicability,
        edits: tuple[Edit, ...] = (),
        first_line: int = 0,
    ) -> Finding:
        """A finding at a span; `first_line` is where its statement or decorated class begins."""
        return Finding(
            code=code,
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


def for_scripts(code: str) -> bool:
    """Whether a code is that of a rule about training scripts, and not about models."""
    return code.startswith("CKPT1")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its code, and the module that finds what it is about.

    `documentation` has the four headings: what it does, why it is bad, an example, fix safety.
    """

    code: str
    name: str
    find: Callable[[Context], Iterator[Finding]]
    documentation: str

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return self.documentation.strip().splitlines()[0]

    @classmethod
    def of(cls, code: str, module: ModuleType) -> Rule:
        """The rule that a module of this package is."""
        name = module.__name__.rpartition(".")[2]
        return cls(code, name, module.find, module.__doc__ or "")
