"""Transformers reach what they are told to change, and report what they miss."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.edits.arguments import RearrangeArguments, RenameOccurrence
from ckpt_surgery.codemods.edits.inline import RemoveInlineBranch
from ckpt_surgery.codemods.edits.layer_base import AddDerivedLayer, DeriveFromImport, LayerBase
from ckpt_surgery.codemods.edits.methods import RemoveComment, RemoveMethod, ReorderParameters
from ckpt_surgery.codemods.edits.paths import ModuleTransformer, PlaceError
from ckpt_surgery.codemods.repair import Definition, NewArgument, Occurrence
from tests.codemods.edits.transforming import transform

TEXT = """\
if fast:
    class Block(nn.Module):
        pass
else:
    class Block(Mixin):
        # old
        # Copied from bar
        def forward(self, states, mask, *, past=None):
            class Inner(nn.Module): ...

            if past:
                states = run(states, mask=mask)
            else:
                states = run(states)
            return run(run(states))

        def forward(self, states):
            return states
"""
FORWARD = Definition("Block.forward")
SECOND = NewArgument(1, None)
LAST = TEXT[TEXT.index("\n        def forward(self, states):") :]
OUTER = """\
            class Outer(GradientCheckpointingLayer, Inner):
                \"""Said.\"""
"""


@pytest.mark.parametrize(
    ("transformer", "old", "new"),
    [
        (LayerBase(Definition("Block")), "Block(nn.Module)", "Block(GradientCheckpointingLayer)"),
        (LayerBase(Definition("Block", 1)), "Block(Mixin)", "Block(GradientCheckpointingLayer, Mixin)"),
        (RearrangeArguments(Occurrence(FORWARD, "run"), [SECOND], width=80), "states, mask=mask", "mask"),
        (RearrangeArguments(Occurrence(FORWARD, "run", 1), (), width=80), "= run(states)", "= run()"),
        (RearrangeArguments(Occurrence(FORWARD, "run", 2), (), width=80), "run(run(states))", "run()"),
        (RearrangeArguments(Occurrence(FORWARD, "run", 3), (), width=80), "run(run(states))", "run(run())"),
        (ReorderParameters(FORWARD, ["mask", "states"]), "states, mask, *", "mask, states, *"),
        (RenameOccurrence(Occurrence(FORWARD, "mask"), "None"), "mask=mask", "mask=None"),
        (RenameOccurrence(Occurrence(Definition(), "fast"), "slow"), "if fast", "if slow"),
        (RemoveComment(FORWARD, "# Copied from bar"), "        # Copied from bar\n", ""),
        (RemoveMethod(Definition("Block.forward", 1)), LAST, ""),
        (
            RemoveInlineBranch(Occurrence(FORWARD), width=80),
            "            if past:\n                states = run(states, mask=mask)\n            else:\n    ",
            "",
        ),
        (
            AddDerivedLayer(Definition("Block.forward.Inner"), "Outer", "Said."),
            "Inner(nn.Module): ...\n",
            f"Inner(nn.Module): ...\n\n\n{OUTER}",
        ),
    ],
)  # fmt: skip
def test_what_is_named_is_changed(transformer: ModuleTransformer, old: str, new: str) -> None:
    assert TEXT.count(old) == 1 or isinstance(transformer, RenameOccurrence)
    assert transform(transformer, TEXT) == TEXT.replace(old, new, 1)


@pytest.mark.parametrize(
    ("transformer", "said"),
    [
        (LayerBase(Definition("Absent")), "Absent is not in the module"),
        (LayerBase(Definition("Block", 2)), "Block is not in the module"),
        (RearrangeArguments(Occurrence(FORWARD, "walk"), (), width=80), "no call of walk number 0 in Block.forward"),
        (RearrangeArguments(Occurrence(FORWARD, "run", 4), (), width=80), "no call of run number 4 in Block.forward"),
        (RenameOccurrence(Occurrence(Definition(), "past", 9), "x"), "no name past number 9 in the module"),
        (RemoveInlineBranch(Occurrence(FORWARD, index=1), width=80), "no if number 1 in Block.forward"),
        (RemoveInlineBranch(Occurrence(Definition("Block.other")), width=80), "Block.other is not in the module"),
        (ReorderParameters(FORWARD, ["mask"]), "the first parameters of Block.forward after self are not mask"),
        (RemoveMethod(Definition("Block.backward")), "Block.backward is not in the module"),
        (DeriveFromImport("A", "B"), "no guarded statement imports B as A alone"),
    ],
)
def test_what_is_missing_is_named(transformer: ModuleTransformer, said: str) -> None:
    with pytest.raises(PlaceError, match=said):
        transform(transformer, TEXT)


def test_a_branch_without_its_own_else_is_refused() -> None:
    text = "def f():\n    if a:\n        pass\n    elif b:\n        pass\n"
    with pytest.raises(PlaceError, match="no else branch of its own"):
        transform(RemoveInlineBranch(Occurrence(Definition("f")), width=80), text)


def test_what_is_in_an_f_string_is_no_occurrence() -> None:
    text = 'def f():\n    g(f"{run(1)}", run(2))\n'
    call = Occurrence(Definition("f"), "run")
    assert transform(RearrangeArguments(call, (), width=80), text) == text.replace("run(2)", "run()")


def test_a_comment_on_a_constant_goes_with_it_and_others_stay() -> None:
    text = """\
def f(x):
    if a:
        x = checkpoint(
            run,  # what runs
            x,
            None,  # past_key_values is always None here
        )
    else:
        x = run(x)
"""
    made = transform(RemoveInlineBranch(Occurrence(Definition("f")), width=80), text)
    assert made == "def f(x):\n    # what runs\n    x = run(x)\n"


def test_comments_above_a_method_that_goes_last_stay() -> None:
    text = "class A:\n    x = 1\n\n    # def old(self):\n    #     pass\n\n    # goes\n    def f(self): ...\n"
    made = transform(RemoveMethod(Definition("A.f")), text)
    assert made == "class A:\n    x = 1\n\n    # def old(self):\n    #     pass\n"


def test_a_branch_at_module_level_is_refused() -> None:
    with pytest.raises(PlaceError, match="at module level"):
        transform(RemoveInlineBranch(Occurrence(Definition()), width=80), "if a:\n    x = 1\nelse:\n    x = 2\n")


def test_a_default_in_front_of_none_is_refused() -> None:
    with pytest.raises(PlaceError, match="without a default"):
        transform(ReorderParameters(Definition("f"), ["b", "a"]), "def f(self, a, b=1): ...\n")


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ([NewArgument(0, "x")], "b(x=(z for z in q))"),
        ([NewArgument(0, None), NewArgument(None, None, "None")], "b((z for z in q), None)"),
    ],
)
def test_a_generator_gets_parentheses_where_it_needs_them(arguments: list[NewArgument], after: str) -> None:
    call = Occurrence(Definition(), "b")
    assert transform(RearrangeArguments(call, arguments, width=80), "b(z for z in q)\n") == f"{after}\n"


def test_two_comments_on_one_argument_stay() -> None:
    text = "b(\n    mask=mask  # first\n    ,  # second\n    x=x,\n)\n"
    arguments = [NewArgument(1, None), NewArgument(0, "mask")]
    made = transform(RearrangeArguments(Occurrence(Definition(), "b"), arguments, width=80), text)
    assert "# first" in made
    assert "# second" in made
