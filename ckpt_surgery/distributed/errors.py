"""What `ckpt_surgery.distributed` raises and warns with."""

from __future__ import annotations


class DistributedError(RuntimeError):
    """Training on several ranks would go wrong, or has; the text says where, why and what to do."""


class DistributedWarning(UserWarning):
    """Training on several ranks goes on, and something about it is wrong."""
