"""Which classes are the same: in a modular file, in the file generated from it, and in the parent's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.tree.source_tree import SourceTree
from tests.codemods.tree.trees import BAR, FOO, class_named, source_tree

MODULAR = "/t/models/foo/modular_foo.py"
NOTICE = "# This file was automatically generated from src/transformers/models/foo/modular_foo.py.\n"
PARENT = "class BarLayer: ...\nclass BarHead: ...\nclass BarModel: ...\n"
CHILD = "from ..bar.modeling_bar import BarModel\nclass FooModel(BarModel): ...\n"
GENERATED = "class FooLayer: ...\nclass FooHead: ...\nclass FooModel: ...\n"


def family(child: str = CHILD, generated: str = NOTICE + GENERATED) -> SourceTree:
    return source_tree({BAR: PARENT, FOO: generated, MODULAR: child})


def same(tree: SourceTree, name: str, path: str) -> set[tuple[str, str]]:
    refs = tree.lineages.same(class_named(tree, name, path))
    assert refs[0] == class_named(tree, name, path)
    return {(Path(ref.path).name, ref.name) for ref in refs}


def test_a_class_of_the_modular_file_is_that_of_the_generated_file() -> None:
    expected = {("modular_foo.py", "FooModel"), ("modeling_foo.py", "FooModel")}
    assert same(family(), "FooModel", MODULAR) == same(family(), "FooModel", FOO) == expected


@pytest.mark.parametrize(("name", "path"), [("BarLayer", BAR), ("FooLayer", FOO)])
def test_what_the_converter_copies_from_the_parent_is_the_parents_class(name: str, path: str) -> None:
    assert same(family(), name, path) == {("modeling_bar.py", "BarLayer"), ("modeling_foo.py", "FooLayer")}


def test_a_class_that_the_modular_file_defines_itself_is_not_the_parents() -> None:
    tree = family(CHILD + "class FooLayer: ...\n")
    assert same(tree, "FooLayer", FOO) == {("modeling_foo.py", "FooLayer"), ("modular_foo.py", "FooLayer")}
    assert same(tree, "BarLayer", BAR) == {("modeling_bar.py", "BarLayer")}


def test_a_file_that_says_nothing_of_its_origin_has_no_lineage() -> None:
    tree = family(generated=GENERATED)
    assert same(tree, "FooLayer", FOO) == {("modeling_foo.py", "FooLayer")}
    assert same(tree, "FooModel", FOO) == {("modeling_foo.py", "FooModel")}


def test_a_modular_file_without_a_parent_gives_nothing_to_others() -> None:
    tree = family("class FooModel: ...\n")
    assert same(tree, "BarLayer", BAR) == {("modeling_bar.py", "BarLayer")}
