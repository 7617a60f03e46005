"""The replay's judge: what it calls identical, harmless, safer, changed and worse, and that it can fail."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import ckpt_surgery
from benchmarks.replay import __main__ as replay
from benchmarks.replay import grade as replay_grade
from benchmarks.replay import sites as replay_sites
from benchmarks.replay.grade import Comparison, Grade, grade_classes, grade_sites, wanted_by
from benchmarks.replay.sites import Snapshot, read
from ckpt_surgery.static.results import ApplyResult, Note, Problem, Progress

HEAD = """
from torch import nn
from ...modeling_layers import GradientCheckpointingLayer

class ToyLayer({base}):
    def forward(
        self, hidden_states, attention_mask=None, encoder_hidden_states=None, past_key_value=None, use_cache=False
    ):
        return hidden_states

class ToyModel(nn.Module):
    def __init__(self, config):
        self.layers = nn.ModuleList([ToyLayer(config) for _ in range(2)])

    def forward(self, hidden_states, mask, encoder_hidden_states, past, use_cache, kwargs):
        for index, layer in enumerate(self.layers):
"""
INLINE = """
            if self.gradient_checkpointing and self.training:
                outputs = self._gradient_checkpointing_func(
                    layer.__call__, hidden_states, mask, encoder_hidden_states, None, use_cache
                )
            else:
                outputs = {call}
"""
ELSE = """layer(
                    hidden_states,
                    attention_mask=mask,
                    encoder_hidden_states=encoder_hidden_states,
                    past_key_value=past,
                    use_cache=use_cache,
                )"""
REPAIRED = "layer(hidden_states, mask, encoder_hidden_states, past_key_value=past, use_cache=use_cache)"
BEFORE = HEAD.format(base="nn.Module") + INLINE.format(call=ELSE)
LAYER = HEAD.format(base="GradientCheckpointingLayer")


def repaired(call: str = REPAIRED, target: str = "outputs = ") -> str:
    """Return the toy model without its branch and with its block a layer."""
    return f"{LAYER}            {target}{call}\n"


def tree(root: Path, source: str, path: str = "toy/modeling_toy.py", **more: str) -> Path:
    """Write one file, and others named `family__file`, into a models folder."""
    files = {path: source} | {f"{name.replace('__', '/')}.py": text for name, text in more.items()}
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def snapshots(tmp_path: Path, before: str, ours: str, upstream: str) -> tuple[Snapshot, Snapshot, Snapshot]:
    old = read(tree(tmp_path / "before", before))
    expected = wanted_by(old)
    return (
        old,
        read(tree(tmp_path / "ours", ours), expected),
        read(tree(tmp_path / "upstream", upstream), expected),
    )


def graded(tmp_path: Path, ours: str, upstream: str, before: str = BEFORE) -> Comparison:
    (site,) = grade_sites(*snapshots(tmp_path, before, ours, upstream))
    return site


def only_site(tmp_path: Path, source: str, **more: str) -> replay_sites.Site:
    """Return the only block call of a tree."""
    (site,) = [site for site in read(tree(tmp_path, source, **more)).sites if site.path.startswith("toy/")]
    return site


# What is graded how


def test_an_unrepaired_model_is_worse_in_branch_class_and_arguments(tmp_path: Path) -> None:
    old, ours, upstream = snapshots(tmp_path, BEFORE, BEFORE, repaired())
    (site,) = grade_sites(old, ours, upstream)
    (block,) = grade_classes(old, ours, upstream)
    assert (site.grade, block.grade) == (Grade.WORSE, Grade.WORSE)
    assert site.reasons == (
        "the inline branch is left",
        "ToyLayer is no layer, upstream's is",
        "gradient argument encoder_hidden_states by keyword",
    )
    assert block.reasons == ("no layer, upstream's is",)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            "layer(hidden_states, mask, encoder_hidden_states=encoder_hidden_states, past_key_value=past, "
            "use_cache=use_cache)",
            "gradient argument encoder_hidden_states by keyword",
        ),
        (
            "layer(hidden_states, mask, encoder_hidden_states, past, use_cache=use_cache)",
            "past state past_key_value by position",
        ),
        ("layer(hidden_states, mask, encoder_hidden_states, past_key_value=past)", "lost use_cache=use_cache"),
        (
            "layer(hidden_states, mask, past_key_value=past, use_cache=use_cache)",
            "lost encoder_hidden_states=encoder_hidden_states",
        ),
        (
            "layer(hidden_states, None, encoder_hidden_states, past_key_value=past, use_cache=use_cache)",
            "attention_mask=mask became None",
        ),
        (
            "layer(hidden_states, mask, encoder_hidden_states, past_key_value=past, use_cache=use_cache, other=1)",
            "invented other=1",
        ),
        (
            "layer(hidden_states, mask, encoder_hidden_states, past_key_value=past, use_cache=use_cache, **kwargs)",
            "no ** became **kwargs",
        ),
        (
            "layer(hidden_states, encoder_hidden_states, mask, past_key_value=past, use_cache=use_cache)",
            "attention_mask=mask became encoder_hidden_states",
        ),
        ("hidden_states", "the call is gone"),
    ],
)
def test_a_fault_of_ours_is_worse(tmp_path: Path, call: str, reason: str) -> None:
    site = graded(tmp_path, repaired(call), repaired())
    assert site.grade is Grade.WORSE
    assert reason in site.reasons


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("            if mask is None:\n                continue\n", "+ if mask is None:; + continue"),
        ("            return mask\n", "+ return mask"),
    ],
)
def test_a_change_to_other_code_of_the_method_is_worse(tmp_path: Path, line: str, reason: str) -> None:
    ours = repaired().replace("            outputs =", f"{line}            outputs =")
    site = graded(tmp_path, ours, repaired())
    assert (site.grade, site.reasons) == (Grade.WORSE, (f"other code of the method changed: {reason}",))


def test_another_condition_around_the_call_is_worse(tmp_path: Path) -> None:
    ours = repaired(f"{REPAIRED} if mask is None else None")
    assert graded(tmp_path, ours, repaired()).grade is Grade.WORSE
    moved = repaired(target="if use_cache: outputs = ")
    site = graded(tmp_path / "other", moved, repaired())
    assert site.grade is Grade.WORSE
    assert "+ if use_cache:" in site.reasons[0]


def test_a_block_left_plain_is_worse_at_its_call_too(tmp_path: Path) -> None:
    plain = repaired().replace(LAYER, HEAD.format(base="nn.Module"))
    site = graded(tmp_path, plain, repaired())
    assert site.grade is Grade.WORSE
    assert site.reasons == ("ToyLayer is no layer, upstream's is",)


def test_removing_a_branch_from_a_plain_block_is_worse_than_keeping_it(tmp_path: Path) -> None:
    plain = repaired().replace(LAYER, HEAD.format(base="nn.Module"))
    site = graded(tmp_path, plain, BEFORE)
    assert site.grade is Grade.WORSE
    assert site.reasons == ("the inline branch is gone and ToyLayer is no layer: nothing is recomputed any more",)


def test_a_fault_is_worse_where_upstream_no_longer_has_the_call(tmp_path: Path) -> None:
    kept = repaired("layer(hidden_states, mask, encoder_hidden_states, past, use_cache)")
    site = graded(tmp_path, kept, "class Other:\n    pass\n")
    assert (site.grade, site.reasons) == (Grade.WORSE, ("past state past_key_value by position",))


@pytest.mark.parametrize(
    ("upstream", "reason"),
    [
        (
            "layer(hidden_states, mask, encoder_hidden_states, past, use_cache=use_cache)",
            "past state past_key_value by position upstream, by keyword in ours",
        ),
        (
            "layer(hidden_states, mask, encoder_hidden_states=encoder_hidden_states, past_key_value=past, "
            "use_cache=use_cache)",
            "gradient argument encoder_hidden_states by keyword upstream, by position in ours",
        ),
    ],
)
def test_ours_is_safer_where_upstream_left_a_fault(tmp_path: Path, upstream: str, reason: str) -> None:
    site = graded(tmp_path, repaired(), repaired(upstream))
    assert (site.grade, site.reasons) == (Grade.SAFER, (reason,))


def test_ours_is_safer_where_upstream_left_the_branch(tmp_path: Path) -> None:
    old, ours, upstream = snapshots(tmp_path, BEFORE, repaired(), BEFORE)
    (site,) = grade_sites(old, ours, upstream)
    (block,) = grade_classes(old, ours, upstream)
    assert (site.grade, block.grade) == (Grade.SAFER, Grade.SAFER)
    assert "upstream left the inline branch" in site.reasons
    assert not site.comparable


@pytest.mark.parametrize(
    ("upstream", "reason"),
    [
        (
            repaired(REPAIRED.replace("mask", "causal_mask")),
            "upstream passes attention_mask=causal_mask instead of mask",
        ),
        (repaired(target="hidden_states = "), "upstream's result goes elsewhere: hidden_states = <call>"),
        (repaired(REPAIRED.replace(")", ", **kwargs)")), "upstream passes **kwargs"),
        (LAYER + "            pass\n", "upstream no longer has this call"),
        (
            repaired("layer(hidden_states, mask, past_key_value=past, use_cache=use_cache)"),
            "only ours passes encoder_hidden_states=encoder_hidden_states",
        ),
    ],
)
def test_what_upstream_changed_does_not_count_against_ours(tmp_path: Path, upstream: str, reason: str) -> None:
    site = graded(tmp_path, repaired(), upstream)
    assert (site.grade, site.reasons) == (Grade.CHANGED, (reason,))


@pytest.mark.parametrize(
    ("parameter", "learned", "computed"),
    [
        ("position_embeddings", "query_position_embeddings", "(cos, sin)"),
        ("reference_points", "reference_points_input", "reference_points"),
    ],
)
def test_learned_and_computed_embeddings_differ_by_their_expression(
    parameter: str, learned: str, computed: str
) -> None:
    assert replay_grade.carries_gradient(parameter, learned)
    assert not replay_grade.carries_gradient(parameter, computed)


# Classes


def bases(tmp_path: Path, before: str, ours: str, upstream: str) -> list[Comparison]:
    return grade_classes(*snapshots(tmp_path, before, ours, upstream))


def test_a_class_that_lost_a_base_is_worse(tmp_path: Path) -> None:
    before, ours = "class A(Mixin, nn.Module): pass", "class A(GradientCheckpointingLayer): pass"
    (item,) = bases(tmp_path, before, ours, "class A(Mixin, GradientCheckpointingLayer): pass")
    assert (item.grade, item.reasons) == (Grade.WORSE, ("lost the base Mixin",))


def test_both_definitions_of_a_guarded_class_are_graded_import_or_class(tmp_path: Path) -> None:
    guard = "if is_available():\n    {0}\nelse:\n    class Block({1}): pass\n"
    before = guard.format("from outside import Inner as Block", "nn.Module")
    upstream = guard.format("class Block(GradientCheckpointingLayer, Inner): pass", "GradientCheckpointingLayer")
    half = guard.format("from outside import Inner as Block", "GradientCheckpointingLayer")
    assert [item.grade for item in bases(tmp_path / "all", before, upstream, upstream)] == [Grade.IDENTICAL] * 2
    grades = {item.before: item.grade for item in bases(tmp_path / "half", before, half, upstream)}
    assert grades == {"import Inner as Block": Grade.WORSE, "class Block(nn.Module)": Grade.IDENTICAL}


# What is read


def test_the_else_branch_says_what_is_passed_and_the_branch_counts_once(tmp_path: Path) -> None:
    site = only_site(tmp_path, BEFORE)
    assert site.arguments.positional == (("hidden_states", "hidden_states"),)
    assert dict(site.arguments.keywords)["past_key_value"] == "past"
    assert (site.callee, site.target, site.blocks, site.switched) == ("layer", "outputs = <call>", ("ToyLayer",), True)
    assert site.inline < site.line


@pytest.mark.parametrize(
    ("stack", "loop"),
    [
        ("self.layers = nn.ModuleList([ToyLayer(config)])", "for layer in self.layers:"),
        ("self.layers = nn.ModuleList([ToyLayer(config)])", "for layer in self.layers[: self.depth]:"),
        ("self.layers = nn.ModuleList([ToyLayer(config)])", "for i, (layer, m) in enumerate(zip(self.layers, ms)):"),
        ("self.layers = nn.ModuleDict({'a': ToyLayer(config)})", "for name, layer in self.layers.items():"),
        ("blocks = [ToyLayer(config)]; self.layers = nn.ModuleList(blocks)", "for layer in self.layers:"),
        (
            "blocks = []; blocks.append(ToyLayer(config)); self.layers = nn.Sequential(*blocks)",
            "for layer in self.layers:",
        ),
        ("self.layers = nn.ModuleList(); self.layers.append(ToyLayer(config))", "for layer in self.layers:"),
        ("kind = ToyLayer if config.a else ToyLayer; self.layers = [kind(config)]", "for layer in self.layers:"),
        ("self.layers = nn.ModuleList([ToyLayer(config, tail=ToyModel)])", "for layer in reversed(self.layers):"),
    ],
)
def test_the_block_is_found_however_the_stack_is_built_and_walked(tmp_path: Path, stack: str, loop: str) -> None:
    source = BEFORE.replace("self.layers = nn.ModuleList([ToyLayer(config) for _ in range(2)])", stack)
    source = source.replace("for index, layer in enumerate(self.layers):", loop)
    assert only_site(tmp_path, source).blocks == ("ToyLayer",)


@pytest.mark.parametrize(
    "line",
    ["from ..base.modeling_base import BaseLayer", "from transformers.models.base.modeling_base import BaseLayer"],
)
def test_signature_and_layer_come_from_a_parent_in_another_file(tmp_path: Path, line: str) -> None:
    parent = "class BaseLayer(GradientCheckpointingLayer):\n    def forward(self, first, second): pass\n"
    child = (
        f"{line}\nclass ToyLayer(BaseLayer): pass\nclass M(nn.Module):\n    def __init__(self):\n"
        "        self.block = ToyLayer()\n    def forward(self, a, b):\n        return self.block(a, b)\n"
    )
    site = only_site(tmp_path, child, base__modeling_base=parent)
    assert site.arguments.positional == (("first", "a"), ("second", "b"))
    assert site.layers == ("ToyLayer",)


def test_arguments_bind_to_a_local_function_and_inside_it_to_the_block(tmp_path: Path) -> None:
    function = "            def run(module, hidden, past=None):\n                return module(hidden, past)\n"
    branch = INLINE.format(call="run(layer, hidden_states, past=past)").replace("layer.__call__, ", "run, layer, ")
    inside, through = read(tree(tmp_path, HEAD.format(base="nn.Module") + function + branch)).sites
    assert inside.arguments.positional == (("hidden_states", "hidden"), ("attention_mask", "past"))
    assert through.arguments.positional == (("module", "layer"), ("hidden", "hidden_states"))
    assert through.blocks == inside.blocks == ("ToyLayer",)


def test_a_local_function_takes_gradient_keywords_and_its_block_does_not(tmp_path: Path) -> None:
    function = "            def run(module, hidden_states):\n                return module({argument})\n"
    branch = INLINE.format(call="run(layer, hidden_states=hidden_states)").replace("layer.__call__, ", "run, layer, ")
    before = HEAD.format(base="nn.Module") + function.format(argument="hidden_states=hidden_states") + branch
    ours = LAYER + function + "            outputs = run(layer, hidden_states=hidden_states)\n"
    upstream = "class Other:\n    pass\n"
    trees = snapshots(tmp_path / "right", before, ours.format(argument="hidden_states"), upstream)
    assert [site.grade for site in grade_sites(*trees)] == [Grade.CHANGED, Grade.CHANGED]
    trees = snapshots(tmp_path / "wrong", before, ours.format(argument="hidden_states=hidden_states"), upstream)
    assert {site.before: site.grade for site in grade_sites(*trees)} == {
        "return module(hidden_states=hidden_states)": Grade.WORSE,
        "outputs = run(module: layer, hidden_states=hidden_states)": Grade.CHANGED,
    }


def test_a_checkpointed_call_of_no_block_is_followed_in_the_other_trees(tmp_path: Path) -> None:
    body = "class M(nn.Module):\n    def __init__(self):\n        self.conv = nn.Conv1d(1, 1)\n"
    body += "    def forward(self, x):\n"
    branch = (
        "        if self.gradient_checkpointing and self.training:\n"
        "            y = torch.utils.checkpoint.checkpoint(self.conv, x)\n"
        "        else:\n            y = self.conv(x)\n"
    )
    before, after = body + branch, body + "        y = self.conv(x)\n"
    site = graded(tmp_path, after, before, before)
    assert (site.grade, site.reasons) == (Grade.SAFER, ("upstream left the inline branch",))
    assert graded(tmp_path / "other", before, after, before).reasons == ("the inline branch is left",)


def test_the_judge_shares_no_code_with_the_codemods() -> None:
    for module in (replay_sites, replay_grade):
        assert module.__file__
        syntax = ast.parse(Path(module.__file__).read_text())
        imported = {n.module or "" for n in ast.walk(syntax) if isinstance(n, ast.ImportFrom)}
        imported |= {a.name for n in ast.walk(syntax) if isinstance(n, ast.Import) for a in n.names}
        assert not [name for name in imported if name.startswith(("codemods", "ckpt_surgery", "model_patches"))]


# The script


class FakeApply:
    """A fake `ckpt_surgery.apply` that replaces the models folder by another one, or leaves it."""

    def __init__(self, made: Path | None, problems: tuple[Problem, ...] = ()) -> None:
        self.made = made
        self.problems = problems
        self.given: tuple[Path, bool] | None = None

    def __call__(self, paths: Sequence[Path], *, unsafe: bool, progress: Progress | None) -> ApplyResult:
        (models,) = paths
        self.given = (models, unsafe)
        if self.made:
            shutil.copytree(self.made, models, dirs_exist_ok=True)
        return ApplyResult((), (), (), self.problems, (Note("toy.py", "a comment had to go"),), 1, True, 0.1)


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let `fetch` return two releases of a toy model: 4.52.4 to repair, and 4.53.0 repaired by hand."""
    tree(tmp_path / "4.52.4/models", BEFORE, other__modeling_other=BEFORE)
    tree(tmp_path / "4.53.0/models", repaired(), other__modeling_other=repaired())
    monkeypatch.setattr(replay, "fetch", lambda version: tmp_path / version)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, apply: FakeApply) -> int:
    # Not setattr: that would first import the one replaced.
    monkeypatch.setitem(vars(ckpt_surgery), "apply", apply)
    return replay.main(["4.52.4", "4.53.0"])


def test_upstreams_own_tree_as_ours_ends_with_0_and_changes_nothing(
    releases: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apply = FakeApply(releases / "4.53.0/models")
    assert run(monkeypatch, apply) == 0
    printed = capsys.readouterr().out
    assert next(line for line in printed.splitlines() if "identical" in line).split() == ["identical", "2", "2", "2"]
    assert "Inline branches left in ours: 0." in printed
    assert "note: toy.py: a comment had to go" in printed
    assert apply.given
    models, unsafe = apply.given
    assert unsafe
    assert not models.exists()
    assert (releases / "4.52.4/models/toy/modeling_toy.py").read_text() == BEFORE


def test_a_codemod_that_does_nothing_ends_with_1_and_names_every_site(
    releases: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FakeApply(None)) == 1
    printed = capsys.readouterr().out
    assert "WORSE (4)" in printed
    assert "toy/modeling_toy.py:23 ToyModel: the inline branch is left" in printed


def test_a_problem_of_apply_ends_with_1(
    releases: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apply = FakeApply(releases / "4.53.0/models", (Problem("toy.py", "cannot be read"),))
    assert run(monkeypatch, apply) == 1
    assert "problem: toy.py: cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["def broken(:\n", None], ids=["does not parse", "no file"])
def test_bad_input_ends_with_2_and_one_line(
    releases: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str | None
) -> None:
    for file in (releases / "4.53.0/models").rglob("*.py"):
        file.write_text(source) if source else file.unlink()
    assert run(monkeypatch, FakeApply(None)) == 2
    errors = capsys.readouterr().err
    assert "modeling_" in errors
    assert errors.count("\n") == 1
