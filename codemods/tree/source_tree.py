"""A tree of files as rules and edits see it: its names, what its classes inherit and hold, its blocks, its texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.blocks import Blocks
from ckpt_surgery.codemods.tree.call_sites import CallSites
from ckpt_surgery.codemods.tree.containers import Containers
from ckpt_surgery.codemods.tree.layer_sources import LAYERS, LayerSources
from ckpt_surgery.codemods.tree.lineages import Lineages
from ckpt_surgery.codemods.tree.names import Loader, TreeNames
from ckpt_surgery.codemods.tree.places import Places
from ckpt_surgery.codemods.tree.switches import Switches

LINE_LENGTH = 119
"""The line length of transformers."""
_CLEARED_BY_DEFAULT = ("use_cache", "past_key_values", "layer_past")
_FOLDERS_ABOVE = 3
"""How far above a file the one that defines its layer class may be: `fla/models/gla/modeling_gla.py`."""


class SourceTree:
    """The files that are checked, and those loaded beside them to understand them.

    Args:
        files: path to facts of the checked files.
        load: the facts of another file, or None where there is none.
        text: the text of a file.
        width: the line length of the tree's formatter.
        configuration: the text of a configuration file, by the script that names it and the name; None where it cannot
            be read.
        installed_layers: the installed transformers' modeling_layers.py, empty where there is none.
        required: the requirements on transformers of the package that a file is in.
    """

    def __init__(
        self,
        files: Mapping[str, FileFacts],
        load: Loader,
        text: Callable[[str], str],
        width: int = LINE_LENGTH,
        configuration: Callable[[str, str], str | None] = lambda path, name: None,
        installed_layers: str = "",
        required: Callable[[str], Collection[str]] = lambda path: (),
    ) -> None:
        self.names = TreeNames(files, load)
        self.bases = BaseChains(self.names)
        self.containers = Containers(self.names, self.bases)
        self.layers = LayerSources(self.names, required)
        self.switches = Switches(self.bases, self.containers, self.layers)
        self.blocks = Blocks(self.bases, self.containers, self.switches)
        self.calls = CallSites(self.bases, self.containers, self.blocks)
        self.lineages = Lineages(self.names)
        self.text = text
        self.width = width
        self.configuration = configuration
        self.installed_layers = installed_layers
        self._sources: dict[str, SourceText] = {}
        self._places: dict[str, Places] = {}
        self._cleared: dict[str, tuple[str, ...]] = {}

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
        """The keywords that the GradientCheckpointingLayer of a file's blocks clears before it checkpoints.

        That class is the tree's own, else that of the installed transformers.
        """
        folder = os.path.dirname(path)
        if folder not in self._cleared:
            found = (facts.cleared for place in self._layer_files(path) if (facts := self.names.facts(place)))
            self._cleared[folder] = next((cleared for cleared in found if cleared is not None), _CLEARED_BY_DEFAULT)
        return self._cleared[folder]

    def _layer_files(self, path: str) -> Iterator[str]:
        """Where the layer class of a file's blocks may be defined, the likeliest place first."""
        position = path.rfind(f"{os.sep}models{os.sep}")
        if position >= 0:
            yield os.path.join(path[:position], f"{LAYERS}.py")
        folder = path
        for _ in range(_FOLDERS_ABOVE):
            folder = os.path.dirname(folder)
            yield os.path.join(folder, f"{LAYERS}.py")
        if self.installed_layers:
            yield self.installed_layers
