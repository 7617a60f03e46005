"""A tree of files as rules and edits see it: its names, what its classes inherit and hold, its blocks, its texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.blocks import Blocks
from ckpt_surgery.codemods.tree.call_sites import CallSites
from ckpt_surgery.codemods.tree.containers import Containers
from ckpt_surgery.codemods.tree.lineages import Lineages
from ckpt_surgery.codemods.tree.names import Loader, TreeNames
from ckpt_surgery.codemods.tree.places import Places

LINE_LENGTH = 119
"""The line length of transformers."""
_CLEARED_BY_DEFAULT = ("use_cache", "past_key_values", "layer_past")


class SourceTree:
    """The files that are checked, and those loaded beside them to understand them.

    Args:
        files: path to facts of the checked files.
        load: the facts of another file, or None where there is none.
        text: the text of a file.
        width: the line length of the tree's formatter.
        configuration: the text of a configuration file, by the script that names it and the name; None where it cannot
            be read.
    """

    def __init__(
        self,
        files: Mapping[str, FileFacts],
        load: Loader,
        text: Callable[[str], str],
        width: int = LINE_LENGTH,
        configuration: Callable[[str, str], str | None] = lambda path, name: None,
    ) -> None:
        self.names = TreeNames(files, load)
        self.bases = BaseChains(self.names)
        self.containers = Containers(self.names, self.bases)
        self.blocks = Blocks(self.bases, self.containers)
        self.calls = CallSites(self.bases, self.containers, self.blocks)
        self.lineages = Lineages(self.names)
        self.text = text
        self.width = width
        self.configuration = configuration
        self._sources: dict[str, SourceText] = {}
        self._places: dict[str, Places] = {}

    @property
    def checked(self) -> tuple[str, ...]:
        """The paths of the checked files."""
        return self.names.checked

    def source(self, path: str) -> SourceText:
        """A file's text with its positions."""
        if path not in self._sources:
            self._sources[path] = SourceText(self.text(path))
        return self._sources[path]

    def places(self, path: str) -> Places:
        """The places of a file by name. The file is one of the tree."""
        if path not in self._places:
            facts = self.names.facts(path)
            assert facts is not None
            self._places[path] = Places(self.source(path), facts)
        return self._places[path]

    def scripts(self) -> Iterator[tuple[str, ScriptFacts]]:
        """The checked files that are training scripts, and what they say as such."""
        for path in self.checked:
            script = self.names.files[path].script
            if script:
                yield path, script

    def cleared(self, path: str) -> tuple[str, ...]:
        """The keywords that this tree's GradientCheckpointingLayer clears before it checkpoints."""
        position = path.rfind(f"{os.sep}models{os.sep}")
        if position >= 0:
            facts = self.names.facts(os.path.join(path[:position], "modeling_layers.py"))
            if facts and facts.cleared is not None:
                return facts.cleared
        return _CLEARED_BY_DEFAULT
