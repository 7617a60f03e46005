"""Preference training of TRL with an adapter of PEFT, whose base is the reference, under an allocator limit."""

from __future__ import annotations

from trl import DPOConfig, DPOTrainer

from tests.integrations.local_files import sentence
from tests.integrations.trl_training import train

train(
    DPOConfig,
    DPOTrainer,
    [{"prompt": sentence(n, 20), "chosen": sentence(n + 1, 30), "rejected": sentence(n + 2, 30)} for n in range(16)],
)
