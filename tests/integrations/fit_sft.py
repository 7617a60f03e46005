"""Supervised fine-tuning of TRL with an adapter of PEFT under an allocator limit."""

from __future__ import annotations

from trl import SFTConfig, SFTTrainer

from tests.integrations.local_files import sentence
from tests.integrations.trl_training import train

train(SFTConfig, SFTTrainer, [{"prompt": sentence(n, 20), "completion": sentence(n + 1, 30)} for n in range(16)])
