"""The options of `wrap_blocks` about offload, on models: where to, how much is pinned, and what undo gives back."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch.utils.checkpoint import checkpoint

from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.measure.compare import differences
from ckpt_surgery.runtime.buffer_pool import BufferPool
from ckpt_surgery.runtime.disk_transport import MappedFiles
from ckpt_surgery.runtime.host_transport import HostTransport
from ckpt_surgery.runtime.pinned_pool import PinnedPool
from ckpt_surgery.runtime.surgery import Surgery

pytestmark = [
    pytest.mark.both,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself"),
]
