"""The command `run`: what its options become, and one sentence for each bad input. `tests/guarding` runs scripts."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from ckpt_surgery.cli import run
from ckpt_surgery.cli.main import main

pytestmark = pytest.mark.torch


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What scripts were started with, in place of starting them."""
    calls: list[tuple[Any, ...]] = []

    def note(*arguments: Any) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(run, "_run", note)
    monkeypatch.setattr(run, "need_runtime", lambda _: None)
    return calls


def test_options_are_those_of_wrap_blocks_and_of_the_guard(started: list[tuple[Any, ...]]) -> None:
    options = "--wrap --reentrant --offload --save attention --stacks model.* --stacks vision --blocks Layer"
    watching = "--first 20 --every-n 2 --self-check 5 --every 7 --no-prove --patience 3 --on-fault warn"
    assert main(["run", *options.split(), *watching.split(), "-m", "train", "--first", "x"]) == 0
    ((script, arguments, module, wrap, wrapping, guarding, _),) = started
    assert (script, arguments, module, wrap) == ("train", ["--first", "x"], True, True)
    assert wrapping == {
        "use_reentrant": True,
        "offload": "cpu",
        "save": ["attention"],
        "stacks": ["model.*", "vision"],
        "blocks": ["Layer"],
        "first": 20,
        "every_n": 2,
        "self_check": 5,
    }
    assert guarding == {"every": 7, "prove": False, "patience": 3, "on_fault": "warn"}


def test_what_is_not_given_is_left_to_wrap_blocks_and_the_guard(started: list[tuple[Any, ...]]) -> None:
    assert main(["run", "train.py"]) == 0
    ((_, arguments, module, wrap, wrapping, guarding, _),) = started
    assert (arguments, module, wrap) == ([], False, None)
    assert run.given(wrapping) == {}
    assert run.given(guarding) == {"prove": True}


def test_numbers_of_first_blocks_are_by_stack_where_stacks_are_named(started: list[tuple[Any, ...]]) -> None:
    assert main(["run", "--first", "model.layers=20", "--first", "vision*=2", "train.py"]) == 0
    assert started[0][4]["first"] == {"model.layers": 20, "vision*": 2}


@pytest.mark.parametrize("spelled", ["--local_rank=0", "--local-rank=12"])
def test_an_argument_that_a_launcher_puts_before_the_command_is_the_scripts(
    started: list[tuple[Any, ...]], spelled: str
) -> None:
    assert main([spelled, "run", "--wrap", "train.py", "--x"]) == 0
    assert started[0][:2] == ("train.py", [spelled, "--x"])


def test_before_another_command_it_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--local_rank=0", "check"]) == 2
    assert "--local_rank" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, "0"),
        ({"RANK": "0", "SLURM_PROCID": "1"}, "0"),  # a launcher of its own inside one task
        ({"SLURM_PROCID": "1"}, "1"),
        ({"OMPI_COMM_WORLD_RANK": "2"}, "2"),
        ({"RANK": "3"}, "3"),
    ],
)
def test_the_rank_is_what_the_launcher_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], rank: str
) -> None:
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run.rank_of_process() == rank


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no script to run: give a Python file"),
        (["--every", "0", "train.py"], "'0' is not"),
        (["--self-check", "often", "train.py"], "'often' is not"),
        (["--on-fault", "shout", "train.py"], "'shout' is not one of collect, warn, raise"),
        (["--first", "layers", "train.py"], "--first is 'layers': give a number"),
        (["--first", "=2", "train.py"], "--first is '=2': give a number"),
        (["--first", "2", "--first", "layers=2", "train.py"], "give one number, or a number by stack"),
    ],
)
def test_bad_options_are_one_sentence(
    started: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["run", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", "").split())
    assert not started
