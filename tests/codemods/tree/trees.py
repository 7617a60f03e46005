"""Small trees in memory, for tests of what several files show together."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree

FOO, BAR = "/t/models/foo/modeling_foo.py", "/t/models/bar/modeling_bar.py"


def source_tree(files: Mapping[str, str], beside: Mapping[str, str] | None = None) -> SourceTree:
    """Build the tree of some checked files and of others that imports may lead to."""
    facts = {path: extract(text) for path, text in files.items()}
    others = {path: extract(text) for path, text in (beside or {}).items()}
    return SourceTree(facts, others.get, {**files, **(beside or {})}.__getitem__)


def class_named(tree: SourceTree, name: str, path: str = FOO) -> ClassRef:
    return tree.names.defined(path, name)[0]
