"""The offload of a case moves what the small models have, to every store, and a store that is wrong is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from torch import Tensor, nn

from benchmarks.fuzz_cases.case import STORES, Case, Store
from benchmarks.fuzz_cases.judge import Outcome, judge
from benchmarks.fuzz_cases.late_copies import Deferred
from benchmarks.fuzz_cases.run import operated, train
from ckpt_surgery.runtime.offload import disk_transport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.surgery.surgery import Surgery

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself")]

MATMULS = ("matmul",)


def case_of(store: Store, save: tuple[str, ...] = ()) -> Case:
    return Case(2, "ThreeSteps", ("Dropout",), blocks=3, offload=store, save=save)


def moved(case: Case) -> int:
    """How many tensors left in a training."""
    offloaders: list[Offloader] = []

    def treat(model: nn.Module, case: Case) -> Callable[[], None]:
        undo: Any = operated(model, case)
        surgery: Surgery = undo.__self__
        assert surgery.offloader is not None
        offloaders.append(surgery.offloader)
        return lambda: undo()

    assert train(case, treat).error is None
    return sum(offloader.stats.tensors for offloader in offloaders)


@pytest.mark.parametrize("store", STORES)
def test_inputs_and_results_move(store: Store) -> None:
    steps, blocks, matmuls = 3, 3, 2
    calls = steps * (blocks - 1)  # what the last block has stays
    assert moved(case_of(store)) == calls
    assert moved(case_of(store, MATMULS)) == (1 + matmuls) * calls
    assert judge(case_of(store, MATMULS)).outcome is Outcome.EQUAL


def lose(target: Tensor, source: Tensor) -> None:
    """A copy that doesn't copy."""
    target.zero_()


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_loses_values_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_transport, "_copy", lose)
    monkeypatch.setattr(Deferred, "get", lambda store, copy: copy.tensor)
    get = HostTransport.get
    monkeypatch.setattr(HostTransport, "get", lambda store, copy: get(store, copy).zero_())
    assert judge(case_of(store)).outcome is not Outcome.EQUAL
