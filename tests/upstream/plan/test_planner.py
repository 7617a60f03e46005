"""The families that a series repairs, which of them share a commit, and in what order."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.layout import families_of
from ckpt_surgery.upstream.options import GroupBy
from ckpt_surgery.upstream.plan.plan import SeriesPlan
from ckpt_surgery.upstream.plan.planner import chosen_families, plan_series
from tests.upstream import toy_checkout

CODES = [f"CKPT{number:03}" for number in range(1, 11)]
MODELS = "src/transformers/models"
LAYER = """\
class {name}Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = nn.MultiheadAttention(config.hidden_size, 1)

    def forward(self, hidden_states):
        return self.attention(hidden_states, hidden_states, hidden_states)[0]

"""
CALLER = """\

class {name}Model(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([{name}Layer(config) for _ in range(2)])

    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states=hidden_states)
        return hidden_states
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_checkout.make(tmp_path_factory.mktemp("toy") / "transformers", python=False)


def plan(tree: Path, *families: str, group_by: GroupBy = GroupBy.ROOT, copies_follow: bool = True) -> SeriesPlan:
    return plan_series(tree, chosen_families(tree, families), CODES, group_by, copies_follow=copies_follow)


def series(made: SeriesPlan) -> dict[str, list[tuple[str, ...]]]:
    return {entry.name: [commit.families for commit in entry.commits] for entry in made.series}


def test_families_are_the_model_folders(toy: Path) -> None:
    assert families_of(toy) == ("ash", "birch", "cedar")
    assert chosen_families(toy, ()) == {"ash", "birch", "cedar"}
    assert chosen_families(toy, ["birch"]) == {"birch"}


def test_deprecated_families_are_taken_only_by_name(tmp_path: Path) -> None:
    for name in ("oak", "deprecated/elm"):
        toy_checkout.write(tmp_path / MODELS / name / "__init__.py", "")
    assert families_of(tmp_path) == ("elm", "oak")
    assert chosen_families(tmp_path, ()) == {"oak"}
    assert chosen_families(tmp_path, ["elm"]) == {"elm"}


def test_a_family_that_is_not_there_is_refused_with_the_nearest(toy: Path) -> None:
    with pytest.raises(UpstreamError, match="there is no model folder Birhc: did you mean birch"):
        chosen_families(toy, ["Birhc"])
    with pytest.raises(UpstreamError, match="names are folders of src/transformers/models"):
        chosen_families(toy, ["quite-another"])


def test_families_are_grouped_by_what_their_blocks_come_from(toy: Path) -> None:
    together = [("ash", "cedar"), ("birch",)]
    assert series(plan(toy)) == {"ash": together}
    assert series(plan(toy, group_by=GroupBy.ALL)) == {"all": together}
    assert series(plan(toy, group_by=GroupBy.FAMILY)) == {"ash": [together[0]], "birch": [together[1]]}


def test_a_family_that_was_not_asked_for_stays_out(toy: Path) -> None:
    made = plan(toy, "birch")
    assert series(made) == {"birch": [("birch",)]}
    assert made.idle == ()
    assert {finding.family for finding in made.findings} == {"ash", "birch", "cedar"}  # siblings are listed regardless


def test_what_a_repair_needs_elsewhere_comes_with_it(toy: Path) -> None:
    # cedar's block is ash's: a repair of the one that left out the other would be generated away
    (commit,) = plan(toy, "cedar").series[0].commits
    assert commit.families == ("ash", "cedar")
    assert f"{MODELS}/ash/modeling_ash.py" in {change.path for change in commit.changes}


def test_paths_and_messages_name_no_place_of_the_machine(toy: Path) -> None:
    made = plan(toy)
    commits = [commit for entry in made.series for commit in entry.commits]
    said = [change.path for commit in commits for change in commit.changes] + [
        str(note) for entry in made.series for note in entry.notes
    ]
    said += [
        text
        for finding in (*made.findings, *(f for commit in commits for f in commit.findings))
        for text in (finding.path, finding.message)
    ]
    assert said
    assert not [text for text in said if str(toy.parent) in text]


def test_a_family_without_a_repair_is_idle(tmp_path: Path, toy: Path) -> None:
    toy_checkout.write(tmp_path / MODELS / "oak" / "__init__.py", "")
    toy_checkout.write(tmp_path / MODELS / "oak" / "modeling_oak.py", "import torch\n")
    made = plan(tmp_path, "oak")
    assert (made.series, made.idle) == ((), ("oak",))


@pytest.mark.parametrize("follows", [True, False], ids=["with a script that propagates", "without"])
def test_a_copy_keeps_its_comment_if_a_script_updates_it(tmp_path: Path, follows: bool) -> None:
    # the source stands in a model that checkpoints, its copy in one that does not
    head = "from torch import nn\n\nfrom ...modeling_utils import PreTrainedModel\n\n\n"
    tied = "# Copied from transformers.models.oak.modeling_oak.OakLayer with Oak->Elm\n"
    files = {
        "oak": head + LAYER.format(name="Oak") + CALLER.format(name="Oak"),
        "elm": head + tied + LAYER.format(name="Elm") + CALLER.format(name="Elm").replace("= True", "= False"),
    }
    for name, text in files.items():
        toy_checkout.write(tmp_path / MODELS / name / f"modeling_{name}.py", text)
    made = plan(tmp_path, copies_follow=follows)
    changed = {change.path for entry in made.series for commit in entry.commits for change in commit.changes}
    assert (f"{MODELS}/elm/modeling_elm.py" in changed) is not follows
    assert len([note for entry in made.series for note in entry.notes]) == (0 if follows else 1)


def test_sources_come_before_what_is_copied_from_them(tmp_path: Path) -> None:
    head = "from torch import nn\n\nfrom ...modeling_utils import PreTrainedModel\n\n\n"
    for name, source in (("Aspen", "Birch"), ("Birch", "Yew"), ("Yew", "")):
        low = source.lower()
        tied = f"# Copied from transformers.models.{low}.modeling_{low}.{source}Layer with {source}->{name}\n"
        text = head + (tied if source else "") + LAYER.format(name=name) + CALLER.format(name=name)
        toy_checkout.write(tmp_path / MODELS / name.lower() / f"modeling_{name.lower()}.py", text)
    made = plan(tmp_path)
    assert series(made) == {"birch": [("yew",), ("birch",), ("aspen",)]}
    assert {commit.rules for commit in made.series[0].commits} == {("CKPT001", "CKPT003")}
