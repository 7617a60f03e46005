"""The offload of a case: the tensors of its small models move too, to the store that the case says."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from unittest.mock import patch

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.late_copies import Deferred
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloader import Offloader, Transport
from ckpt_surgery.runtime.surgery import checkpointing
from ckpt_surgery.runtime.surgery.options import SurgeryOptions


def moving_all(case: Case) -> AbstractContextManager[object]:
    """Inside, surgeries get the offloader of a case: no tensor is too small for it."""
    return patch.object(checkpointing, "_offloader", partial(_offloader, case))


def _offloader(case: Case, options: SurgeryOptions) -> Offloader | None:
    if options.offload is None:
        return None
    return Offloader(_transport(case), minimum_bytes=0, in_flight=1 + case.seed % 3)


def _transport(case: Case) -> Transport:
    if case.offload == "disk":
        return DiskTransport()
    if case.offload == "late":
        return Deferred(case.seed if case.seed % 4 else None)
    return HostTransport()
