"""What holds for all tests: interrupts are heard, and what the installed packages cannot run is skipped by name.

With `--fail-if-none-ran`, a run in which every test was skipped fails.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fail-if-none-ran`."""
    parser.addoption(
        "--fail-if-none-ran", action="store_true", help="exit with 5 if every test was skipped or deselected"
    )


def hear_interrupts() -> None:
    """Hear interrupts: what a shell or nohup starts in the background ignores them, and so would all it starts."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def torch_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence the debug mode of torch's checkpoint, whose log records pytest cannot format.

    After its first use the logger no longer propagates, and pytest then listens to it in every later test.
    """
    monkeypatch.setattr(logging.getLogger("LoggingTensor"), "disabled", True)


@pytest.fixture
def one_rank() -> Iterator[None]:
    """Start a gloo process group of this process alone.

    A test that makes a DistributedDataParallel needs it: where that is the last to hold the group, torch 2.13 waits
    for the group's threads with Python's lock, and now and then for ever.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    gc.collect()
    dist.destroy_process_group()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs another transformers, or a torch that is missing; on several workers, start with slow files."""
    if hasattr(config, "workerinput"):
        items.sort(key=start_order(items))
    transformers = installed_major("transformers")
    for item in items:
        marks = frozenset(mark.name for mark in item.iter_markers())
        torch = importlib.util.find_spec("torch") is not None
        reason = missing(marks, transformers, torch=torch, gpu="gpu" in marks and torch and gpu_is_there())
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what has been imported: tests and a surgery collect now and then."""
    gc.collect()
    gc.freeze()


def start_order(items: Sequence[pytest.Item]) -> Callable[[pytest.Item], tuple[bool, int, Path]]:
    """Sort files with a slow test first, then files with many tests, and keep each file together.

    xdist schedules whole files: a slow file that starts last leaves the other workers idle.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    count = Counter(item.path for item in items)
    return lambda item: (item.path not in slow, -count[item.path], item.path)


def gpu_is_there() -> bool:
    """Tell whether tests marked `gpu` can run: on a CUDA GPU, or on the processor in a dry run."""
    import torch

    return bool(os.environ.get("CKPT_SURGERY_GPU_DRY")) or torch.cuda.is_available()


def installed_major(distribution: str) -> int:
    """Return the major version of a distribution; 0 if it is not installed."""
    try:
        return int(importlib.metadata.version(distribution).split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


def missing(marks: frozenset[str], transformers: int, *, torch: bool, gpu: bool = False) -> str:
    """Say why a test with these marks cannot run with this major version of transformers; empty if it can."""
    installed = f"transformers {transformers} is installed" if transformers else "transformers is not installed"
    live = marks & {"torch", "transformers4", "both", "gpu"}
    if live and not torch:
        return "needs torch, which is not installed"
    if "gpu" in marks and not gpu:
        return "needs a CUDA GPU"
    if "both" in marks:
        return "" if transformers in (4, 5) else f"needs transformers 4 or 5; {installed}"
    if "transformers4" in marks:
        return "" if transformers == 4 else f"needs transformers 4; {installed}"
    if "torch" in marks:
        return "" if transformers == 5 else f"needs transformers 5; {installed}"
    return ""


class RanCounter:
    """A counter of the tests whose body ran, under xdist too: the reports of all workers come here."""

    def __init__(self) -> None:
        self.ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once, when its body was called."""
        self.ran += report.when == "call" and not report.skipped

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a success without a test into "no tests ran"."""
        if session.exitstatus == pytest.ExitCode.OK and not self.ran:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_configure(config: pytest.Config) -> None:
    """Hear interrupts, and count what runs where that decides over success: a worker of xdist sees only its share."""
    hear_interrupts()
    if config.getoption("--fail-if-none-ran") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RanCounter(), "ran_counter")
