"""Names to classes: what is defined, imported, loaded, and what is outside the tree."""

from __future__ import annotations

from ckpt_surgery.codemods.tree.classes import Answer, ClassRef, External
from tests.codemods.tree.trees import BAR, FOO, class_named, source_tree


def test_both_definitions_under_a_guard_are_meant() -> None:
    text = "if fast:\n    class A: ...\nelse:\n    class A(GradientCheckpointingLayer): ...\n"
    tree = source_tree({FOO: text})
    assert [tree.bases.is_layer(ref) for ref in tree.names.named(FOO, "A") if isinstance(ref, ClassRef)] == [
        Answer.NO,
        Answer.YES,
    ]


def test_what_is_not_at_hand_is_external() -> None:
    tree = source_tree({FOO: "from elsewhere.part import Thing"})
    assert tree.names.named(FOO, "Thing") == (External("Thing", "elsewhere.part"),)
    assert tree.names.named(FOO, "Nothing") == ()


def test_files_loaded_to_understand_others_are_not_checked() -> None:
    tree = source_tree({FOO: "from ..bar.modeling_bar import B\nclass A(B): ..."}, {BAR: "class B: ..."})
    assert tree.bases.is_layer(class_named(tree, "A")) is Answer.NO
    assert [ref.name for ref in tree.names.checked_classes()] == ["A"]


def test_a_function_is_found_from_the_top_of_the_files_that_are_checked() -> None:
    tree = source_tree({"foo/run.py": "from foo.tools import given", "foo/tools.py": "def given(): ..."})
    assert tree.names.function("foo/run.py", "given") == ("foo/tools.py", "given")


def test_a_class_is_found_behind_an_absolute_import_of_the_same_package() -> None:
    files = {
        "top/foo/run.py": "from foo.parts import A, B\nfrom blocks import C",
        "top/foo/parts/__init__.py": "from foo.parts.a import A",
        "top/foo/parts/a.py": "class A: ...",
        "top/foo/blocks.py": "class C: ...",
        "other/blocks.py": "class C: ...",
    }
    names = source_tree(files).names
    found = {
        name: [target.path for target in names.named("top/foo/run.py", name) if isinstance(target, ClassRef)]
        for name in "ABC"
    }
    assert found == {"A": ["top/foo/parts/a.py"], "B": [], "C": ["top/foo/blocks.py"]}
    assert names.named("top/foo/run.py", "B") == (External("B", "foo.parts"),)
