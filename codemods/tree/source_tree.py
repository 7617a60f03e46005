"""The tree of files that rules and repairs are about: its names, classes, blocks and texts."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.providers.script import SCRIPT
from ckpt_surgery.codemods.tree.bases import BaseChains
from ckpt_surgery.codemods.tree.blocks import Blocks
from ckpt_surgery.codemods.tree.caching import cached_method
from ckpt_surgery.codemods.tree.call_sites import CallSites
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.containers import Containers
from ckpt_surgery.codemods.tree.layer_releases import LayerReleases
from ckpt_surgery.codemods.tree.lineages import Lineages
from ckpt_surgery.codemods.tree.module_modes import ModuleModes
from ckpt_surgery.codemods.tree.names import Loader, TreeNames
from ckpt_surgery.codemods.tree.places import Places
from ckpt_surgery.codemods.tree.requirements import only_since
from ckpt_surgery.codemods.tree.switches import Switches
from ckpt_surgery.model_patches.release_names import NON_REENTRANT_SINCE

LINE_LENGTH = 119
"""The line length of transformers."""

REQUIRES_GRAD = "requires_grad"
"""The attribute of a parameter that says whether it is trained."""
_REENTRANT = re.compile(r"use_reentrant(?:: bool)?\W{1,4}True\b")


class SourceTree:
    """The checked files, and other files that are loaded to understand them.

    Args:
        files: the facts of the checked files by path.
        load: returns the facts of another file, None if there is no such file.
        text: returns the text of a file.
        width: the line length of the tree's formatter.
        configuration: returns the text of a configuration file, given the path of the script that names it and that
            name; None if it cannot be read.
        installed_layers: the path of the installed transformers' modeling_layers.py; empty if there is none.
        required: returns the requirements on transformers that hold for a file, each with the file that states it.
        unparsed: the files of the tree that are read only if a name leads to them.
        converts: whether working inline branches outside transformers are replaced by layers too.
    """

    def __init__(
        self,
        files: Mapping[str, FileFacts],
        load: Loader,
        text: Callable[[str], str],
        width: int = LINE_LENGTH,
        configuration: Callable[[str, str], str | None] = lambda path, name: None,
        installed_layers: str = "",
        required: Callable[[str], Mapping[str, str]] = lambda path: {},
        unparsed: Collection[str] = (),
        converts: bool = False,
    ) -> None:
        self.text = text
        self.width = width
        self.configuration = configuration
        self.names = TreeNames(files, load, unparsed)
        self.bases = BaseChains(self.names)
        self.containers = Containers(self.names, self.bases, self.function_node)
        self.layers = LayerReleases(self.names, required, installed_layers)
        self.switches = Switches(self.bases, self.containers, self.layers)
        self._converts = converts
        self.blocks = Blocks(self.bases, self.containers, self.switches, self.function_node, self.keeps_branches)
        self.calls = CallSites(self.bases, self.containers, self.blocks, self.layers)
        self.lineages = Lineages(self.names)
        self.modes = ModuleModes(self.bases, self.containers, self.source, self.class_node, self.function_node)

    @property
    def checked(self) -> tuple[str, ...]:
        """The paths of the checked files."""
        return self.names.checked

    def keeps_branches(self, path: str) -> bool:
        """Tell whether a file keeps the inline branches that work, so that their blocks stay plain."""
        return not (self._converts or self.layers.is_core(path))

    @cached_method
    def never_reentrant(self, path: str) -> bool:
        """Tell whether a file's package admits only non-reentrant defaults, and no code sets `use_reentrant=True`."""
        if self.layers.is_core(path) or not only_since(NON_REENTRANT_SINCE, self.layers.required(path)):
            return False
        return not self._sets_reentrant

    @cached_property
    def _sets_reentrant(self) -> bool:
        return any(_REENTRANT.search(self.text(path)) for path in (*self.names.checked, *self.names.unparsed))

    @cached_property
    def freezing_classes(self) -> tuple[ClassRef, ...]:
        """The checked classes that mention `requires_grad`: they may decide which parameters are trained."""
        paths = [path for path in self.checked if REQUIRES_GRAD in self.text(path)]
        classes = (ref for path in paths for ref in self.names.classes(path))
        return tuple(ref for ref in classes if REQUIRES_GRAD in self.source(ref.path).of(ref.cls.span))

    @cached_method
    def source(self, path: str) -> SourceText:
        """Return a file's text with its positions."""
        return SourceText(self.text(path))

    @cached_method
    def places(self, path: str) -> Places:
        """Return what names the places of a file for edits."""
        return Places(self.source(path))

    @cached_method
    def class_node(self, ref: ClassRef) -> ast.ClassDef:
        """Return the syntax tree of one class, for what facts do not say. Its lines are counted from the class."""
        text, column = self.source(ref.path).of(ref.cls.span), ref.cls.span.column
        statement = ast.parse(f"if True:\n{' ' * column}{text}" if column else text).body[0]
        node = statement.body[0] if isinstance(statement, ast.If) else statement
        assert isinstance(node, ast.ClassDef)
        return node

    def method_nodes(self, ref: ClassRef) -> Mapping[str, ast.FunctionDef]:
        """Return the syntax of a class's methods and those that it inherits, the nearest of each name."""
        methods: dict[str, ast.FunctionDef] = {}
        for base in self.bases.lineage(ref):
            for node in self.class_node(base).body:
                if isinstance(node, ast.FunctionDef):
                    methods.setdefault(node.name, node)
        return methods

    @cached_method
    def function_node(self, path: str, name: str) -> ast.FunctionDef | None:
        """Return the syntax tree of the function that a name means at module level of a file; None if unreadable."""
        file, original = self.names.function(path, name) or ("", "")
        text = f"{self.text(file)}\n" if file else ""
        match = re.search(rf"^(?:@.*\n)*def {re.escape(original)}\b.*\n(?:(?:[ \t)#].*)?\n)*", text, re.M)
        with contextlib.suppress(SyntaxError):  # an unindented line of a string looks like the function's end
            body = ast.parse(match.group()).body if match else []
            return next((node for node in body if isinstance(node, ast.FunctionDef)), None)
        return None

    def scripts(self) -> Iterator[tuple[str, ScriptFacts]]:
        """Yield the checked files that are training scripts, with their facts as such."""
        for path in self.checked:
            script = self.names.files[path][SCRIPT]
            if script:
                yield path, script
