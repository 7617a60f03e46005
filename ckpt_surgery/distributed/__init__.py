"""Training on several ranks without silent faults. torch.distributed does the work; this watches and repairs."""

# ruff: noqa: E402

from __future__ import annotations

from ckpt_surgery.optional import load_runtime

load_runtime("ckpt_surgery.distributed", ("torch",))

from ckpt_surgery.distributed.ddp import DDPWatch, call_through_ddp, watch_ddp
from ckpt_surgery.distributed.gradients import SyncStats, gradients_in_sync, sync_gradients
from ckpt_surgery.distributed.needs import DDPOption, DDPReady, Need, NeedReason
from ckpt_surgery.distributed.placement import PlacementGuard, check_placement, guard_placement, local_device_map
from ckpt_surgery.distributed.ready import ddp_ready
from ckpt_surgery.errors import DistributedError, DistributedWarning, PlacementError
from ckpt_surgery.long_sequences.fused_head import FusedLoss, fuse_loss
from ckpt_surgery.long_sequences.fused_loss import fused_linear_cross_entropy
from ckpt_surgery.long_sequences.tiled import Tiling, tile_mlp

__all__ = [
    "DDPOption",
    "DDPReady",
    "DDPWatch",
    "DistributedError",
    "DistributedWarning",
    "FusedLoss",
    "Need",
    "NeedReason",
    "PlacementError",
    "PlacementGuard",
    "SyncStats",
    "Tiling",
    "call_through_ddp",
    "check_placement",
    "ddp_ready",
    "fuse_loss",
    "fused_linear_cross_entropy",
    "gradients_in_sync",
    "guard_placement",
    "local_device_map",
    "sync_gradients",
    "tile_mlp",
    "watch_ddp",
]
