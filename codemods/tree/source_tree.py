"""A tree of files as rules and edits see it: its names, what its classes inherit and hold, its blocks, its texts."""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.providers.layer_class import CLEARED as CLEARED_BY
from ckpt_surgery.codemods.providers.script import SCRIPT
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.blocks import Blocks
from ckpt_surgery.codemods.tree.call_sites import CallSites
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.containers import Containers
from ckpt_surgery.codemods.tree.helpers import Helpers
from ckpt_surgery.codemods.tree.layer_sources import LAYERS, LayerSources
from ckpt_surgery.codemods.tree.lineages import Lineages
from ckpt_surgery.codemods.tree.module_modes import ModuleModes
from ckpt_surgery.codemods.tree.names import Loader, TreeNames
from ckpt_surgery.codemods.tree.places import Places
from ckpt_surgery.codemods.tree.switches import Switches
from ckpt_surgery.model_patches.release_names import CLEARED

LINE_LENGTH = 119
"""The line length of transformers."""
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
        self.blocks = Blocks(self.bases, self.containers, self.switches, Helpers(self.bases, self.function_node))
        self.calls = CallSites(self.bases, self.containers, self.blocks, self.layers.is_core)
        self.lineages = Lineages(self.names)
        self.text = text
        self.width = width
        self.configuration = configuration
        self.installed_layers = installed_layers
        self.modes = ModuleModes(self.bases, self.containers, self.source, self.class_node, self.function_node)
        self._sources: dict[str, SourceText] = {}
        self._places: dict[str, Places] = {}
        self._class_nodes: dict[ClassRef, ast.ClassDef] = {}
        self._function_nodes: dict[tuple[str, str], ast.FunctionDef | None] = {}
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

    def class_node(self, ref: ClassRef) -> ast.ClassDef:
        """The syntax tree of one class, with places of its own, for what the facts of its file do not say."""
        if ref not in self._class_nodes:
            text, column = self.source(ref.path).of(ref.cls.span), ref.cls.span.column
            statement = ast.parse(f"if True:\n{' ' * column}{text}" if column else text).body[0]
            node = statement.body[0] if isinstance(statement, ast.If) else statement
            assert isinstance(node, ast.ClassDef)
            self._class_nodes[ref] = node
        return self._class_nodes[ref]

    def function_node(self, path: str, name: str) -> ast.FunctionDef | None:
        """That of a function at module level; None where its text cannot be read alone."""
        key = (path, name)
        if key not in self._function_nodes:
            match = re.search(rf"^(?:@.*\n)*def {re.escape(name)}\b.*\n(?:(?:[ \t)#].*)?\n)*", self.text(path), re.M)
            self._function_nodes[key] = None
            with contextlib.suppress(SyntaxError):  # a line of a string may look like the end
                body = ast.parse(match.group()).body if match else []
                self._function_nodes[key] = next((node for node in body if isinstance(node, ast.FunctionDef)), None)
        return self._function_nodes[key]

    def scripts(self) -> Iterator[tuple[str, ScriptFacts]]:
        """The checked files that are training scripts, and what they say as such."""
        for path in self.checked:
            script = self.names.files[path][SCRIPT]
            if script:
                yield path, script

    def cleared(self, path: str) -> tuple[str, ...]:
        """The keywords that the GradientCheckpointingLayer of a file's blocks clears before it checkpoints.

        That class is the tree's own, else that of the installed transformers.
        """
        folder = os.path.dirname(path)
        if folder not in self._cleared:
            found = (facts[CLEARED_BY] for place in self._layer_files(path) if (facts := self.names.facts(place)))
            self._cleared[folder] = next((cleared for cleared in found if cleared is not None), CLEARED)
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
