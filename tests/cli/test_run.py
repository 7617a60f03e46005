"""The command `run`: its options, and one sentence for each bad input. `tests/guarding` runs scripts."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import SurgeryWarning, guard, wrap_blocks
from ckpt_surgery.cli import run
from ckpt_surgery.cli.main import main
from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions
from ckpt_surgery.long_sequences.long_context import LongContext, long_context
from ckpt_surgery.planning.devices import DEVICES
from tests.zoo.tiny_models import llama, tokens

pytestmark = pytest.mark.torch


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Note what scripts were started with, in place of starting them."""
    calls: list[tuple[Any, ...]] = []

    def note(*arguments: Any) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(run, "run_training", note)
    monkeypatch.setattr(run, "need_runtime", lambda _: None)
    return calls


def test_options_are_those_of_wrap_blocks_and_of_the_guard(started: list[tuple[Any, ...]]) -> None:
    options = "--wrap --offload --save attention --stacks model.* --stacks vision --blocks Layer"
    options += " --offload-pinned 2KiB --no-preserve-rng-state --no-skip-frozen"
    watching = "--first 20 --every-n 2 --self-check 5 --every 7 --no-prove --patience 3 --on-fault warn"
    assert main(["run", *options.split(), *watching.split(), "-m", "train", "--first", "x"]) == 0
    ((script, arguments, module, wrap, given, _),) = started
    assert (script, arguments, module, wrap) == ("train", ["--first", "x"], True, True)
    assert given.pop("wrap_options") == {
        "offload": "cpu",
        "offload_pinned": 2048,
        "preserve_rng_state": False,
        "skip_frozen": False,
        "save": ["attention"],
        "stacks": ["model.*", "vision"],
        "blocks": ["Layer"],
        "first": 20,
        "every_n": 2,
        "self_check": 5,
    }
    assert given == {"operation": None, "every": 7, "prove": False, "patience": 3, "on_fault": "warn"}


def test_the_command_has_every_option_of_wrap_blocks_and_the_guard(started: list[tuple[Any, ...]]) -> None:
    options = "--offload --save x --stacks x --blocks x --first 1 --every-n 1 --self-check 1 --every 1"
    options += " --offload-pinned 1KB --save-offload --preserve-rng-state --skip-frozen --patience 1 --on-fault warn"
    assert main(["run", *options.split(), "train.py"]) == 0
    arrived = started[0][4]
    assert arrived["wrap_options"].keys() == signature(wrap_blocks).parameters.keys() - {
        "model",
        "context_fn",
        "use_reentrant",
    }
    assert arrived.keys() >= signature(guard).parameters.keys() - {"model"}


def test_where_inputs_wait_and_unsafe_random_states_arrive(started: list[tuple[Any, ...]]) -> None:
    assert main(["run", "--offload-to", "disk", "--unsafe-rng-state", "train.py"]) == 0
    assert started[0][4]["wrap_options"] == {"offload": "disk", "preserve_rng_state": "unsafe"}


def test_long_context_is_done_to_every_model_that_trains(started: list[tuple[Any, ...]]) -> None:
    assert main(["run", "--long-context", "--tokens", "96", "--host", "--keep", "2GB", "train.py"]) == 0
    ((_, _, _, wrap, options, _),) = started
    assert wrap is True
    assert options["wrap_options"] == {}
    assert options["operation"].args == ({"tokens": 96, "host": True, "keep": 2 * 10**9},)


def test_long_context_by_itself_has_its_own_defaults(started: list[tuple[Any, ...]]) -> None:
    assert main(["run", "--long-context", "train.py"]) == 0
    defaults = {name: each.default for name, each in signature(long_context).parameters.items()}
    for name, value in started[0][4]["operation"].args[0].items():
        assert value == defaults[name]


def test_auto_chooses_for_models_that_are_wrapped_with_the_other_options(started: list[tuple[Any, ...]]) -> None:
    assert main(["run", "--auto", "--device", "h200", "--every-n", "2", "train.py"]) == 0
    ((_, _, _, wrap, options, _),) = started
    assert wrap is None
    assert options["operation"].args == (DEVICES["h200"], {"every_n": 2})


@pytest.mark.parametrize("inside", [False, True])
def test_long_context_fuses_the_loss_of_the_first_step_too(inside: bool) -> None:
    class Around(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama(2)

        def forward(self, **inputs: Any) -> Any:
            return self.model(**inputs)

    model: Any = Around() if inside else llama(2)
    model.train()
    ids = tokens()["input_ids"]
    bare = model(input_ids=ids, labels=ids).loss
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    takeover = Takeover(TakeoverOptions(wrap=True, operation=partial(run._long_context, {})), print)
    takeover.install()
    try:
        losses = [model(input_ids=ids, labels=ids).loss for _ in range(2)]
        for loss in losses:
            loss.backward()
        (trained,) = takeover.trained
        surgery = trained.surgery
        assert isinstance(surgery, LongContext)
        assert (surgery.fused_losses, surgery.made_logits) == (2, {})
        assert surgery.loss.state.has_labels == 0
        torch.testing.assert_close(torch.stack(losses), torch.stack([bare, bare]))
    finally:
        takeover.remove()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


def test_a_first_step_without_labels_has_its_own_logits() -> None:
    model: Any = llama(2).train()
    inputs = {"input_ids": tokens()["input_ids"]}
    logits = model(**inputs).logits.detach()
    takeover = Takeover(TakeoverOptions(wrap=True, operation=partial(run._long_context, {})), print)
    takeover.install()
    try:
        with pytest.warns(SurgeryWarning, match="makes its logits"):
            made = model(**inputs).logits.softmax(-1)
        torch.testing.assert_close(made.detach(), logits.softmax(-1))
        assert type(model(**inputs).logits) is torch.Tensor, "the second one is known to have none"
    finally:
        takeover.remove()


def test_a_model_the_script_has_wrapped_is_left_alone_with_a_line() -> None:
    said: list[str] = []
    model: Any = llama(2).train()
    wrap_blocks(model)
    takeover = Takeover(TakeoverOptions(wrap=True, operation=partial(run._long_context, {})), said.append)
    takeover.install()
    try:
        model(**tokens())
    finally:
        takeover.remove()
    assert said == ["LlamaForCausalLM: the script has wrapped it, and it was left as it is"]
    assert takeover.trained[0].problems


def test_a_surgery_that_cannot_be_undone_at_the_end_is_a_line_and_no_error() -> None:
    said: list[str] = []
    model: Any = llama(2).train()
    takeover = Takeover(TakeoverOptions(wrap=True), said.append)
    takeover.install()
    model(**tokens())
    model.model.layers = torch.nn.ModuleList(reversed(model.model.layers))
    takeover.remove()
    assert len(said) == 1
    assert "is no longer at its place" in said[0]


def test_what_is_not_given_is_left_to_wrap_blocks_and_the_guard(started: list[tuple[Any, ...]]) -> None:
    assert main(["run", "train.py"]) == 0
    ((_, arguments, module, wrap, options, _),) = started
    assert (arguments, module, wrap) == ([], False, None)
    assert options == {"wrap_options": {}, "operation": None, "prove": True}


def test_numbers_of_first_blocks_are_by_stack_where_stacks_are_named(started: list[tuple[Any, ...]]) -> None:
    assert main(["run", "--first", "model.layers=20", "--first", "vision*=2", "train.py"]) == 0
    assert started[0][4]["wrap_options"]["first"] == {"model.layers": 20, "vision*": 2}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["attention", "matmul:2"], ["attention", "matmul:2"]),
        (["encoder=attention", "*=attention", "*=aten.mm"], {"encoder": ["attention"], "*": ["attention", "aten.mm"]}),
    ],
)
def test_what_is_saved_is_by_block_where_blocks_are_named(
    started: list[tuple[Any, ...]], options: list[str], expected: Any
) -> None:
    assert main(["run", *(part for each in options for part in ("--save", each)), "train.py"]) == 0
    assert started[0][4]["wrap_options"]["save"] == expected


@pytest.mark.parametrize("options", [["=attention"], ["encoder="], ["attention", "encoder=matmul"]])
def test_what_is_saved_in_no_block_is_refused(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    assert main(["run", *(part for each in options for part in ("--save", each)), "train.py"]) == 2
    assert "error: --save " in capsys.readouterr().err


@pytest.mark.parametrize("spelled", ["--local_rank=0", "--local-rank=12"])
def test_an_argument_a_launcher_puts_before_the_command_is_the_scripts(
    started: list[tuple[Any, ...]], spelled: str
) -> None:
    assert main([spelled, "run", "--wrap", "train.py", "--x"]) == 0
    assert started[0][:2] == ("train.py", [spelled, "--x"])


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, "0"),
        ({"RANK": "0", "SLURM_PROCID": "1"}, "0"),  # a separate launcher inside one task
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
        (["--offload-pinned", "much", "train.py"], "--offload-pinned is 'much': give a size with its unit"),
        (["--offload", "--offload-to", "disk", "train.py"], "--offload is --offload-to cpu: give one of them"),
        (["--tokens", "8", "train.py"], "--tokens is for --long-context"),
        (["--host", "train.py"], "--host is for --long-context"),
        (["--long-context", "--keep", "much", "train.py"], "--keep is 'much': give a size with its unit"),
        (["--device", "H100", "train.py"], "--device is for --auto"),
        (["--auto", "--no-wrap", "train.py"], "and where: leave out --no-wrap"),
        (["--auto", "--offload", "--save", "norm", "train.py"], "and where: leave out --offload and --save"),
        (["--no-wrap", "--long-context", "train.py"], "in its own way: leave out --no-wrap"),
        (
            ["--long-context", "--every-n", "2", "--no-skip-frozen", "train.py"],
            "leave out --skip-frozen and --every-n",
        ),
        (["--first", "2", "--first", "layers=2", "train.py"], "give one number, or a number by stack"),
    ],
)
def test_bad_options_are_one_sentence(
    started: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["run", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", "").split())
    assert not started
