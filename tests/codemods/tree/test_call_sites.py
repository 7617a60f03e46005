"""Calls of blocks: which classes a call may run, and one plan that is right for all of them."""

from __future__ import annotations

from ckpt_surgery.codemods.tree.arguments import ArgumentRepair, UnknownReason
from ckpt_surgery.codemods.tree.call_sites import CallSite
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from tests.codemods.tree.trees import FOO, class_named, source_tree

ENCODER = "encoder_hidden_states"
PAST = "past_key_values"
LAYER = "class {name}(GradientCheckpointingLayer):\n{body}    def forward(self, {signature}): ...\n"
MODEL = """
class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True
    def __init__(self):
        self.layers = nn.ModuleList([{build} for i in range(2)])
        self.norms = nn.ModuleList([FooNorm() for _ in range(2)])
    def forward(self, x, p, e):
        for layer in self.layers:
            x = layer({arguments})
        for norm in self.norms:
            x = norm(x)
        return x
"""
HEAD = "from torch import nn\nclass FooNorm(nn.Module):\n    def forward(self, x): ...\n"


def layer(signature: str, name: str = "FooLayer", body: str = "") -> str:
    return LAYER.format(name=name, body=body, signature=signature)


def tree_of(layers: str, arguments: str, build: str = "FooLayer()") -> SourceTree:
    return source_tree({FOO: HEAD + layers + MODEL.format(build=build, arguments=arguments)})


def site_of(tree: SourceTree) -> CallSite:
    (site,) = tree.calls.all()
    return site


def test_calls_of_layers_are_sites_and_calls_of_other_modules_are_not() -> None:
    tree = tree_of(layer("hidden_states"), "x")
    site = site_of(tree)
    assert site.owner.name == "FooModel"
    assert [(ref.name, [p.name for p in forward.params]) for ref, forward in site.blocks] == [
        ("FooLayer", ["hidden_states"])
    ]
    (call,) = [call for call in site.owner.cls.calls if call is not site.call]
    norm = tree.calls.of_any(site.owner, call)
    assert norm is not None
    assert [ref.name for ref, _ in norm.blocks] == ["FooNorm"]
    assert tree.calls.of(site.owner, call) is None


def test_a_class_that_is_to_become_a_layer_counts_as_one() -> None:
    tree = tree_of(layer("hidden_states").replace("GradientCheckpointingLayer", "nn.Module"), "x")
    assert list(tree.calls.all()) == []
    owner, block = class_named(tree, "FooModel"), class_named(tree, "FooLayer")
    sites = [tree.calls.of(owner, call, becoming=[block]) for call in owner.cls.calls]
    assert [[ref.name for ref, _ in site.blocks] for site in sites if site] == [["FooLayer"]]


def test_a_gradient_keyword_is_planned_away_and_a_healthy_call_stays() -> None:
    signature = f"hidden_states, {ENCODER}=None"
    tree = tree_of(layer(signature), f"x, {ENCODER}=e")
    plan = tree.calls.plan(site_of(tree))
    assert plan.keyword_gradient == (ENCODER,)
    assert [argument.keyword for argument in plan.repair or ()] == [None, None]
    healthy = tree_of(layer(signature), "x, e")
    assert healthy.calls.plan(site_of(healthy)).arguments is None


TWO = "FooLayer() if i else FooOther()"


def test_block_classes_that_need_the_same_arguments_share_a_plan() -> None:
    signature = f"hidden_states, {ENCODER}=None"
    tree = tree_of(layer(signature) + layer(signature, "FooOther"), f"x, {ENCODER}=e", TWO)
    site = site_of(tree)
    assert {ref.name for ref, _ in site.blocks} == {"FooLayer", "FooOther"}
    assert tree.calls.plan(site).unknown is None


def test_block_classes_that_need_different_arguments_have_no_plan() -> None:
    layers = layer(f"hidden_states, {ENCODER}=None") + layer(f"hidden_states, mask=None, {ENCODER}=None", "FooOther")
    tree = tree_of(layers, f"x, {ENCODER}=e", TWO)
    plan = tree.calls.plan(site_of(tree))
    assert plan.keyword_gradient == (ENCODER,)
    assert plan.unknown is not None
    assert plan.unknown.reason is UnknownReason.SIGNATURES
    assert plan.unknown.names == ("FooLayer, FooOther",)
    assert plan.repair is None


def test_positional_past_state_is_planned_away_unless_the_block_keeps_it() -> None:
    signature = f"hidden_states, {PAST}=None"
    for body, harmful in (("", True), ("    _can_checkpoint_with_cache = True\n", False)):
        tree = tree_of(layer(signature, body=body), "x, p")
        plan = tree.calls.plan_of_past_state(site_of(tree), {ArgumentRepair.PAST_STATE})
        assert (plan is not None) is harmful


def test_past_state_by_keyword_is_not_planned() -> None:
    tree = tree_of(layer(f"hidden_states, {PAST}=None"), f"x, {PAST}=p")
    assert tree.calls.plan_of_past_state(site_of(tree), {ArgumentRepair.PAST_STATE}) is None
