"""Surveys of real models: from a configuration, from code that comes with it, and from a factory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckpt_surgery.measure.report import Report
from ckpt_surgery.survey import survey
from ckpt_surgery.survey.resolve import resolve
from ckpt_surgery.survey.worker_pool import WorkerPool
from tests.processes import pool_beside
from tests.survey.own_code import modeling, write_folder

pytestmark = pytest.mark.both

LARGE = {"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "intermediate_size": 11008}

FACTORY = """
from transformers import BertConfig, BertModel

def model():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return BertModel(BertConfig(vocab_size=50, **sizes))

def many():
    return 1, 2, 3, 4

def odd_switch():
    return 1, 2, 3

def with_switch():
    import torch
    from torch.utils.checkpoint import checkpoint

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, hidden):
            return hidden + self.down(torch.tanh(self.up(hidden)))

    class Net(torch.nn.Module):
        on = False

        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in "abc")

        def forward(self, hidden):
            for block in self.blocks:
                hidden = checkpoint(block, hidden, use_reentrant=False) if self.on else block(hidden)
            return hidden.pow(2).mean()

    def switch(model, mode):
        model.on = mode is not None

    return Net(), torch.randn(2, 4, 8), switch

def words():
    return "hello"

def without_configuration():
    import torch
    return torch.nn.Linear(2, 2)

VALUE = 1
"""

Look = Callable[..., list[Report]]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with pool_beside("models_of_mine", FACTORY, tmp_path_factory.mktemp("models")) as home:
        home.worker().close()
        yield home


@pytest.fixture
def look(pool: WorkerPool) -> Look:
    def run(*names: str, trust_remote_code: bool = False) -> list[Report]:
        targets = resolve(names, trust_remote_code=trust_remote_code)
        return survey(targets, workers=1, timeout=100, pool=pool)

    return run


def test_a_configuration_is_shrunk_before_it_is_built(look: Look, tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **LARGE}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (report,) = look(str(tmp_path))
    assert (report.status, report.model, report.target) == ("ok", "LlamaForCausalLM", str(tmp_path))
    assert 0 < report.facts.parameters < 1_000_000


@pytest.mark.parametrize(("base", "status"), [("GradientCheckpointingLayer", "ok"), ("nn.Module", "failed")])
def test_code_that_comes_with_a_configuration_is_run(look: Look, tmp_path: Path, base: str, status: str) -> None:
    folder = write_folder(tmp_path / f"toy_{status}", {"modeling_toy": modeling(base=base)})
    (report,) = look(str(folder), trust_remote_code=True)
    assert (report.status, report.model, report.problem) == (status, "ToyModel", "")
    assert report.model_type == "toy_of_mine"
    assert report.facts.source == str(folder / "modeling_toy.py")
    assert f"code: {report.facts.source}" in "".join(report.lines(width=1_000))


def test_a_configuration_of_which_nothing_can_be_made_is_named(look: Look, tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **LARGE, "rope_scaling": "abc"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (report,) = look(str(tmp_path))
    assert report.problem.startswith("no LlamaConfig can be made from it: ")
    assert report.problem.endswith(": correct the values")


def test_code_of_a_class_that_transformers_has_too_is_run_if_it_is_trusted(look: Look, tmp_path: Path) -> None:
    config = {"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2}
    files = {"modeling_toy": modeling("LlamaModel", base="nn.Module")}
    folder = write_folder(tmp_path / "llama", files, name="LlamaModel", **config)
    (own,) = look(str(folder), trust_remote_code=True)
    assert (own.model, own.status) == ("LlamaModel", "failed")
    assert own.facts.source == str(folder / "modeling_toy.py")
    (other,) = look(str(folder))
    assert (other.model, other.status, other.facts.source) == ("LlamaModel", "ok", "")


def test_a_factory_may_leave_the_inputs_to_us(look: Look) -> None:
    (report,) = look("models_of_mine:model")
    assert (report.status, report.model, report.model_type) == ("ok", "BertModel", "bert")


def test_a_factory_in_a_file_of_any_name_may_return_its_switch(look: Look, tmp_path: Path) -> None:
    file = tmp_path / "3-models.py"
    file.write_text(FACTORY, encoding="utf-8")
    (report,) = look(f"{file}:with_switch")
    assert {run.mode: run.status for run in report.modes} == {"non_reentrant": "ok", "reentrant": "skipped"}
    assert (report.status, report.facts.source) == ("ok", str(file))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "models_of_mine:many",
            "it returns a tuple of 4: it must return a model, a model and its inputs, or those and a switch",
        ),
        ("models_of_mine:VALUE", "it is an object of type int: name a function without arguments"),
        ("models_of_mine:words", "it returns an object of type str: it must return a model, a model and"),
        (
            "models_of_mine:without_configuration",
            "it returns a Linear without a `config` to make inputs from: return (mo",
        ),
        ("models_of_mine:odd_switch", "it returns a switch of type int: it must be a function of the model and"),
        ("models_of_mine:none", "module 'models_of_mine' has no attribute 'none'"),
        ("models_of_nobody:none", "there is no module models_of_nobody here or on the path"),
    ],
)
def test_a_factory_that_makes_no_model_is_said_to_make_none(look: Look, name: str, said: str) -> None:
    (report,) = look(name)
    assert report.status == "not built"
    assert report.problem.startswith(said)
