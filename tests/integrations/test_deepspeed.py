"""DeepSpeed on the CPU, if installed: blocks are proved under each stage of ZeRO, and losses stay the same.

The session `integrations` does not install it. By hand: `pip install deepspeed`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deepspeed")

from tests.integrations.local_files import python

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import os, sys, torch
os.environ["DS_ACCELERATOR"] = "cpu"
import torch.distributed as dist
dist.init_process_group("gloo")
import deepspeed
from ckpt_surgery import guard, wrap_blocks
from tests.zoo.tiny_models import llama, tokens

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for minutes
stage, watch, reentrant = int(sys.argv[1]), sys.argv[2] == "watch", sys.argv[3] == "reentrant"
torch.manual_seed(0)
model = llama(2, use_cache=False).float().train()
if watch:
    wrap_blocks(model, use_reentrant=reentrant)
    watching = guard(model)
config = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
losses = []
for _ in range(4):
    loss = engine(**tokens()).loss
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
proved = f"{watching.report().proved} proved" if watch else ""
said = f"rank {dist.get_rank()}: {losses}" + (f"\\nrank {dist.get_rank()}: {proved}\\n" if watch else "\\n")
print(said, end="", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("stage", "mode"), [(1, "non-reentrant"), (3, "non-reentrant"), (3, "reentrant")])
def test_two_ranks_train_as_without_it_and_each_block_is_proved(stage: int, mode: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py", str(stage))
    bare, ran = (python(tmp_path, *launch, way, mode) for way in ("bare", "watch"))
    assert (bare.returncode, ran.returncode) == (0, 0), bare.stderr + ran.stderr
    losses = [sorted(line for line in each.stdout.splitlines() if line.startswith("rank")) for each in (bare, ran)]
    assert losses[1] == sorted([*losses[0], "rank 0: 2 proved", "rank 1: 2 proved"])
