"""A training that runs out of memory: which part of a step did, what was alive, what helps, what to run."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from ckpt_surgery import guard, wrap_blocks
from ckpt_surgery.cli.training_report import memory_report
from ckpt_surgery.guarding.failed_step import FailedPart, FailedStep, Held
from ckpt_surgery.guarding.proof import BlockWitness, ProofStatus
from ckpt_surgery.guarding.report import GuardReport
from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions
from ckpt_surgery.planning import out_of_memory
from ckpt_surgery.planning.out_of_memory import Alive, Lever, OutOfMemory, explain_failed
from tests.guarding.test_run import forked, script, train
from tests.zoo.memory_limit import MemoryLimit
from tests.zoo.mlp_toys import PARAMETERS, ROWS, WIDTH, Mlps, peaks_of

pytestmark = pytest.mark.torch

TRAIN = """
import sys
import torch
from tests.zoo.memory_limit import limit_memory
from tests.zoo.mlp_toys import ROWS, WIDTH, Mlps, peaks_of

def main(part):
    memory = limit_memory(None)
    model = Mlps()
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.ones(4 if part == "optimizer" else ROWS, WIDTH)
    forward, step = peaks_of(model, rows, memory)
    memory.limit = {"forward": forward - 20_000, "backward": (forward + step) // 2, "optimizer": step + 1}[part]
    print(memory.limit, flush=True)
    for _ in range(3):
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

main(sys.argv[1])
"""

WITH_TRAINER = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from ckpt_surgery import CheckpointGuard
from tests.zoo.memory_limit import limit_memory

sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(**sizes))
rows = [{"input_ids": torch.arange(64), "labels": torch.arange(64)}] * 16
args = TrainingArguments(sys.argv[1], per_device_train_batch_size=8, max_steps=3, report_to=[], use_cpu=True)
trainer = Trainer(model, args, train_dataset=rows, callbacks=[CheckpointGuard()])
limit_memory(1_500_000)
trainer.train()
"""

CAUGHT = """
import torch
from accelerate.utils import find_executable_batch_size
from tests.zoo.memory_limit import limit_memory
from tests.zoo.mlp_toys import ROWS, WIDTH, Mlps

memory = limit_memory(None)
model = Mlps()
memory.limit = memory.live_bytes + 400_000
sizes = []

@find_executable_batch_size(starting_batch_size=ROWS)
def train(batch_size):
    sizes.append(batch_size)
    model(torch.ones(batch_size, WIDTH)).sum().backward()

train()
print(*sizes)
"""


PROVED = """
import sys
import torch
from tests.zoo.memory_limit import limit_memory
from tests.zoo.mlp_toys import ROWS, WIDTH, Mlps

memory = limit_memory(int(sys.argv[1]) if len(sys.argv) > 1 else None)
model = Mlps()
for _ in range(4):
    model(torch.ones(ROWS, WIDTH)).sum().backward()
    model.zero_grad()
print(memory.peak_bytes)
"""


class Locked(Mlps):
    """MLPs with a lock, which nothing can copy."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()


def step(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    torch.autograd.backward(model(torch.ones(ROWS, WIDTH)).sum())
    if optimizer is not None:
        optimizer.step()


@contextmanager
def taken_over() -> Iterator[Takeover]:
    takeover = Takeover(TakeoverOptions(), print)
    takeover.install()
    try:
        yield takeover
    finally:
        takeover.remove()


def failed_step(takeover: Takeover, body: Callable[[], object], limit: int = 300_000) -> FailedStep | None:
    """Return what a takeover keeps of a step that runs out of memory."""
    try:
        with MemoryLimit(limit):
            body()
    except RuntimeError as error:
        takeover.explain(error)
    return takeover.failed


def failed_model(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> OutOfMemory:
    with taken_over() as takeover:
        failed = failed_step(takeover, lambda: step(model, optimizer))
        assert failed is not None
        return explain_failed(failed)


def measured(model: nn.Module) -> tuple[int, int]:
    """Return the peaks of a forward and of a step, without the inputs and the parameters."""
    model.zero_grad()
    rows = torch.ones(ROWS, WIDTH)
    with MemoryLimit(None) as memory:
        return peaks_of(model, rows, memory)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
def test_a_script_learns_what_was_alive_in_which_part_of_its_step(part: str, tmp_path: Path) -> None:
    path, report = script(tmp_path, TRAIN), tmp_path / "report.json"
    ran = train("--report", report, path, part, "a b")
    assert ran.returncode == 1
    if part == "forward":
        bare = forked(path, part, "a b")
        assert (ran.stdout, ran.returncode) == (bare.stdout, bare.returncode)
        frames = [line for line in bare.stderr.splitlines() if str(path) in line or "OutOfMemoryError" in line]
        assert frames
        assert [line for line in ran.stderr.splitlines() if line in frames] == frames
    told = json.loads(report.read_text())["out_of_memory"]
    assert (told["part"], told["model"]) == (part, "Mlps")
    assert f"Mlps ran out of memory in the {'step of AdamW' if part == 'optimizer' else part}" in ran.stderr
    assert told["alive"]["parameters"] == PARAMETERS
    limit, alive = int(ran.stdout), sum(told["alive"].values())
    asked = 4 * WIDTH * 4 * (ROWS if part != "optimizer" else WIDTH)
    assert limit - asked < alive <= limit
    assert (Alive.BLOCKS in told["alive"]) is (part != "optimizer")
    assert (Held.GRADIENTS in told["alive"]) is (part != "forward")
    assert re.search(r"\n +wrap_blocks\(model\) +[\d.]+ KiB +[\d.]+ KiB\n", ran.stderr) or part == "optimizer"
    assert re.search(r"\n +AdamW in 8 bits +[\d.]+ KiB +", ran.stderr)
    assert ran.stderr.endswith(f"\nckpt_surgery: to find what fits, run: ckpt_surgery fit {path} {part} 'a b'\n")


@pytest.mark.slow
def test_a_training_of_the_trainer_is_reported(tmp_path: Path) -> None:
    path = script(tmp_path, WITH_TRAINER)
    ran = train(path, tmp_path / "out")
    assert ran.returncode == 1, ran.stderr
    assert "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in ran.stderr
    assert re.search(r"LlamaForCausalLM ran out of memory in the forward of \S+ \(\w+\.py:\d+\)\. Alive", ran.stderr)
    assert re.search(r"\n  kept by blocks for the backward +[\d.]+ [KM]iB\n", ran.stderr)
    assert re.search(r"\n +fuse_loss\(model\) +[\d.]+ [KM]iB", ran.stderr)
    assert f"run: ckpt_surgery fit {path} {tmp_path / 'out'}\n" in ran.stderr


@pytest.mark.slow
def test_of_errors_that_a_script_catches_a_line_tells(tmp_path: Path) -> None:
    path = script(tmp_path, CAUGHT)
    ran = train(path)
    assert ran.returncode == 0
    said = re.search(r"\nckpt_surgery: out of memory (\d+) times? or more, and the script went on\n", ran.stderr)
    assert said is not None
    assert 1 < int(said[1]) < len(ran.stdout.split())  # some in a backward, which nobody counts here
    assert "ran out of memory" not in ran.stderr
    assert "fit" not in ran.stderr


def test_levers_save_what_they_are_said_to() -> None:
    plain = Mlps()
    told = failed_model(plain, torch.optim.SGD(plain.parameters()))
    assert told.peak_bytes - PARAMETERS == measured(plain)[1]
    saving = next(each for each in told.savings if each.lever is Lever.CHECKPOINT)
    with wrap_blocks(plain, self_check="never"):
        assert saving.peak_bytes - PARAMETERS == measured(plain)[1]
    assert saving.bytes == told.peak_bytes - saving.peak_bytes
    assert Lever.ADAM_8BIT not in {each.lever for each in told.savings}


def test_what_is_checkpointed_gets_no_advice_to_be() -> None:
    model = Mlps()
    with wrap_blocks(model, self_check="never"), taken_over() as takeover:
        forward, _ = measured(model)
        inputs = 4 * ROWS * WIDTH
        failed = failed_step(takeover, lambda: step(model), forward + inputs + 1000)
        assert failed is not None
        told = explain_failed(failed)
    assert told.part is FailedPart.BACKWARD
    assert "as it recomputed blocks.2.mlp" in told.said
    assert told.alive[Alive.RECOMPUTE] > 0
    assert Lever.CHECKPOINT not in {each.lever for each in told.savings}


def test_host_memory_is_offered_on_a_device_alone() -> None:
    model = Mlps()
    on_cuda = cast("FailedStep", SimpleNamespace(device=torch.device("cuda"), model=model))
    whole: Any = SimpleNamespace(blocks=3, checkpointed=0)
    assert {Lever.OFFLOAD, Lever.LONG_CONTEXT} <= {lever for lever, _ in out_of_memory._changes(on_cuda, whole)}
    assert not {Lever.OFFLOAD, Lever.LONG_CONTEXT} & {each.lever for each in failed_model(model).savings}


def test_where_metering_takes_long_hints_say_the_most_that_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    metered = failed_model(Mlps())
    monkeypatch.setattr(out_of_memory, "_PATIENCE", -1.0)
    told = failed_model(Mlps())
    most = {each.lever: each for each in told.savings if not each.metered}
    assert set(most) == {Lever.CHECKPOINT}
    assert most[Lever.CHECKPOINT].bytes >= metered.savings[0].bytes > 0
    assert re.search(r"wrap_blocks\(model\) +at most", str(told))


def test_the_optimizer_is_found_and_what_is_unknown_is_reported() -> None:
    model = Mlps()
    assert any(note.startswith("No optimizer was there") for note in failed_model(model).notes)

    class Own(torch.optim.SGD):
        pass

    optimizer = Own(model.parameters(), 0.1, momentum=0.9)
    with MemoryLimit(None):
        step(model, optimizer)
    told = failed_model(model, optimizer)
    assert told.alive[Held.OPTIMIZER] == PARAMETERS
    assert "No state is known of Own: the peak counts that of AdamW." in told.notes
    assert told.notes[-1] == "A loss that the script computes after the model's forward is not counted."


def test_nothing_of_the_failed_step_and_no_batch_lives_on() -> None:
    kept: list[ref[Tensor]] = []

    def train(model: nn.Module) -> None:
        rows = torch.ones(ROWS, WIDTH)
        hidden = rows * 2
        kept.extend([ref(rows), ref(hidden)])
        torch.autograd.backward(model(hidden).sum())

    with taken_over() as takeover:
        model = Mlps()
        train(model)
        gc.collect()
        assert [each() for each in kept] == [None, None]
        failed = failed_step(takeover, partial(train, model))
        del model
        gc.collect()
        assert [each() for each in kept] == [None] * 4
        assert failed is not None
        assert explain_failed(failed).peak_bytes > 0
        assert failed.held[Held.INPUTS] == 4 * ROWS * WIDTH


def test_an_error_raised_from_one_for_want_of_memory_is_one() -> None:
    def train(kind: str) -> None:
        try:
            step(model)
        except torch.OutOfMemoryError as error:
            raise RuntimeError("the step failed") from (error if kind == "from it" else None)

    model = Mlps()
    for kind in ("from it", "from nothing"):
        with taken_over() as takeover:
            assert (failed_step(takeover, partial(train, kind)) is not None) is (kind == "from it")
            assert takeover.caught == (kind == "from nothing")


def test_before_a_model_trains_only_the_place_is_reported() -> None:
    with taken_over() as takeover:
        failed = failed_step(takeover, lambda: torch.ones(10**6))
        data, lines = memory_report(takeover, ["train.py"])
    assert failed is not None
    assert re.fullmatch(
        r"torch ran out of memory before a model was trained \(test_out_of_memory.py:\d+\)", str(failed)
    )
    assert lines == [f"ckpt_surgery: {failed}."]
    assert data["out_of_memory"]["alive"] == {}


def test_what_cannot_run_on_shapes_is_not_made_up() -> None:
    told = failed_model(Locked())
    assert set(told.alive) == set(Held)
    assert told.alive[Held.PARAMETERS] == PARAMETERS
    assert (told.holders, told.peak_bytes, told.savings) == ((), 0, ())
    assert told.notes[0].startswith("What the step had made is not known: Locked cannot be copied")


def test_an_error_of_the_report_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: FailedStep) -> OutOfMemory:
        raise ValueError("planted")

    monkeypatch.setattr(out_of_memory, "explain_failed", broken)
    with taken_over() as takeover:
        failed_step(takeover, lambda: step(Mlps()))
        data, lines = memory_report(takeover, ["train.py"])
    assert data == {}
    assert len(lines) == 1
    assert lines[0].endswith("; more is not known: ValueError: planted")


def test_an_error_in_reading_the_error_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(FailedStep, "of", broken)
    with taken_over() as takeover:
        assert failed_step(takeover, lambda: step(Mlps())) is None
    assert capsys.readouterr().out == "what was alive as memory ran out is not known: ValueError: planted\n"


def guarded(limit: int | None, *, prove: bool = True) -> tuple[GuardReport, list[Tensor], int]:
    """Train four guarded steps under a limit; return the guard, the weights and the peak."""
    torch.manual_seed(0)
    model = Mlps()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        wrap_blocks(model, self_check="never"),
        guard(model, prove=prove, on_fault="collect") as watching,
        MemoryLimit(limit) as memory,
    ):
        for _ in range(4):
            step(model, optimizer)
            optimizer.zero_grad()
        return watching.report(), [each.detach() for each in model.parameters()], memory.peak_bytes


def test_a_proof_that_runs_out_of_memory_ends_and_the_training_goes_on() -> None:
    _, weights, bare = guarded(None, prove=False)
    proved, _, most = guarded(None)
    assert proved.proved == 3
    assert bare < most
    report, others, _ = guarded(most - 1)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(others, weights, strict=True))
    statuses = [row.proof.status for row in report.blocks]
    assert statuses.count(ProofStatus.NO_MEMORY) == 1
    assert report.proved < 3
    assert (report.steps, report.failure, report.ok) == (4, "", True)
    assert [row.counts for row in report.blocks] == [(1, 1)] * 3
    (note,) = (note for note in report.notes() if "memory ran out in the proof of blocks." in note)
    assert note.endswith("no more blocks are proved; `run --no-prove`, or `prove=False`, leaves proofs out")


@pytest.mark.parametrize("hook", ["_enter", "_note"])
def test_memory_that_runs_out_in_a_hook_of_a_proof_ends_that_proof_alone(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    _, weights, _ = guarded(None, prove=False)
    monkeypatch.setattr(BlockWitness, hook, full)
    report, others, _ = guarded(None)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(others, weights, strict=True))
    assert [row.proof.status for row in report.blocks].count(ProofStatus.NO_MEMORY) == 1
    assert (report.steps, report.failure, report.ok) == (4, "", True)
    assert [row.counts for row in report.blocks] == [(1, 1)] * 3


@pytest.mark.slow
def test_a_script_without_room_for_proofs_is_said_to_run_without(tmp_path: Path) -> None:
    path, report = script(tmp_path, PROVED), tmp_path / "report.json"
    room = str(int(train("--wrap", "--no-prove", path).stdout) + 100)
    ran = train("--wrap", "--report", report, path, room)
    assert ran.returncode == 1
    assert re.search(
        r"\nckpt_surgery: blocks\.\d was being proved, which takes memory, too: `run --no-prove`, or .*"
        r"\nckpt_surgery: \w+ ran out of memory ",
        ran.stderr,
    ), "the advice stands before all that is known"
    assert json.loads(report.read_text())["proving"].startswith("blocks.")
    assert train("--wrap", "--no-prove", path, room).returncode == 0


def test_a_guarded_loop_gets_a_note() -> None:
    model = Mlps()
    with pytest.raises(torch.OutOfMemoryError) as raised, guard(model, on_fault="collect"), MemoryLimit(300_000):
        step(model)
    (note,) = raised.value.__notes__
    assert note.startswith("ckpt_surgery: Mlps ran out of memory in the forward of blocks.")
    assert "of parameters" in note
