"""The thread that copies to files and back: the step goes on, failures are raised there, nothing hangs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.offload import disk_transport
from ckpt_surgery.runtime.offload.copy_thread import CopyThread
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.offloader import Offloader
from tests.zoo.offload_toys import BLOCKS, gradients, same

pytestmark = [
    pytest.mark.both,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself"),
]

ROOT = Path(__file__).parents[3]
MOVED = BLOCKS - 1
BEFORE: list[threading.Thread] = []
"""Threads of earlier tests of this process, some of whose models hold their own graph: nothing collects those."""


@pytest.fixture(autouse=True)
def note_earlier_threads() -> None:
    BEFORE[:] = threading.enumerate()


def threads() -> list[threading.Thread]:
    """List the offload threads that this test began."""
    named = [thread for thread in threading.enumerate() if thread.name.startswith("ckpt-surgery-offload")]
    return [thread for thread in named if thread not in BEFORE]


def waits(gate: threading.Event) -> None:
    gate.wait(5)


def ends(seconds: float = 5) -> bool:
    """Wait for the offload threads of this test to end; return whether they did."""
    gc.collect()
    until = time.monotonic() + seconds
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    return not threads()


def test_copies_are_done_in_order_while_the_caller_goes_on() -> None:
    thread, gate, done = CopyThread(), threading.Event(), list[int]()
    gate_job = thread.run("wait", lambda: waits(gate))
    jobs = [thread.run("copy", partial(done.append, number)) for number in range(5)]
    assert not done
    gate.set()
    gate_job.wait()
    jobs[-1].wait()
    assert done == [0, 1, 2, 3, 4]
    thread.stop()
    assert ends()


def test_the_thread_copies_everything_both_ways(tmp_path: Path) -> None:
    transport = DiskTransport(tmp_path)
    offloader = Offloader(transport, minimum_bytes=0, in_flight=2)
    steps = 4
    for _ in range(steps):
        assert same(gradients(offloader), gradients())
    stats = offloader.stats
    assert stats.tensors == steps * MOVED
    assert stats.peak_in_flight <= 2
    assert stats.peak_returning <= 2
    assert len(threads()) == 1
    transport.release()
    assert ends()


def test_slow_copies_change_no_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(target: Tensor, source: Tensor) -> None:
        time.sleep(0.01)
        target.copy_(source)

    monkeypatch.setattr(disk_transport, "_copy", late)
    assert same(gradients(Offloader(DiskTransport(tmp_path), minimum_bytes=0)), gradients())


def failing(at: int) -> Callable[[Tensor, Tensor], None]:
    count = [0]

    def copy(target: Tensor, source: Tensor) -> None:
        count[0] += 1
        if count[0] == at:
            raise OSError(5, "Input/output error")
        target.copy_(source)

    return copy


@pytest.mark.parametrize(
    ("at", "what"), [(1, "write a block input to a file"), (MOVED + 1, "read a block input from its file")]
)
def test_what_fails_is_raised_in_the_step_and_the_next_one_works(
    at: int, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_transport, "_copy", failing(at))
    offloader = Offloader(DiskTransport(tmp_path), minimum_bytes=0)
    with pytest.raises(SurgeryError, match=f"offload could not {what} .OSError: .Errno 5. Input/output error.: this"):
        gradients(offloader)
    gc.collect()
    assert same(gradients(offloader), gradients())


def test_the_thread_ends_with_the_offloader(tmp_path: Path) -> None:
    assert ends()
    offloader: Offloader | None = Offloader(DiskTransport(tmp_path), minimum_bytes=0)
    gradients(offloader)
    assert len(threads()) == 1
    offloader = None
    assert ends()


EXITS = """
import os, sys, time
from ckpt_surgery.runtime.offload import disk_transport
from ckpt_surgery.runtime.offload.offloader import Offloader
from tests.zoo.offload_toys import blocks, first, forward
def late(target, source):
    time.sleep(0.05)
    target.copy_(source)
disk_transport._copy = late
offloader = Offloader(disk_transport.DiskTransport(sys.argv[1]), minimum_bytes=0, in_flight=4)
loss = forward(blocks(), first(), offloader)
child = os.fork()
if child == 0:
    try:
        loss.backward()
    except disk_transport.SurgeryError:
        sys.exit(7)
    sys.exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
forward(blocks(), first(), offloader)
raise ZeroDivisionError
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_and_a_failing_process_end_while_copies_are_under_way(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXITS, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError")
    assert not [*tmp_path.iterdir()]


def test_a_copy_that_nobody_needs_is_not_begun() -> None:
    thread, gate, done = CopyThread(), threading.Event(), list[int]()
    thread.run("wait", lambda: waits(gate))
    unneeded, last = thread.run("copy", lambda: done.append(1)), thread.run("copy", lambda: done.append(2))
    unneeded.future.cancel()
    gate.set()
    for job in (last, unneeded):
        job.wait()
    assert done == [2]
