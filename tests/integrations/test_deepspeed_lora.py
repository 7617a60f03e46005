"""Adapters of PEFT under DeepSpeed's ZeRO-3 on two ranks, compared with one process without checkpointing.

The frozen weights are whole only while their module runs. trl forces use_reentrant=True there (trl #4951, #6356),
because torch's own non-reentrant checkpointing ends the backward with a CheckpointError before DeepSpeed 0.19.3.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deepspeed", reason="`pip install deepspeed`")
pytest.importorskip("peft", reason="run `make integrations`")

from tests.integrations.local_files import python

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
import deepspeed
from peft import LoraConfig, get_peft_model
from ckpt_surgery import guard, wrap_blocks
from tests.zoo.tiny_models import WORDS, llama

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for minutes
adapted, switched_on = sys.argv[1] == "adapters", sys.argv[2] == "reentrant"
rank = dist.get_rank()


def made():
    model = llama(3, use_cache=False).float()
    if adapted:
        torch.manual_seed(1)
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(model, config).float()
    return model.train()


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def batch(step, part):
    ids = torch.randint(1, WORDS, (4, 6), generator=torch.Generator().manual_seed(step))[part::2]
    return {"input_ids": ids, "labels": ids}


alone = made()
optimizer = torch.optim.SGD(trained(alone).values(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    (sum(alone(**batch(step, part)).loss for part in (0, 1)) / 2).backward()
    optimizer.step()

model = made()
surgery = wrap_blocks(model)
if switched_on:  # as trl does
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    if adapted:
        model.enable_input_require_grads()
watching = guard(model)
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 0.0,  # since 0.19.8 it is 1 where nothing is said
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
optimizer = torch.optim.SGD(trained(model).values(), 0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for step in range(3):
    engine.backward(engine(**batch(step, rank)).loss)
    engine.step()
whole = [name for name, p in model.named_parameters() if p.ds_status.name != "NOT_AVAILABLE"]
apart = 0.0
for name, parameter in trained(model).items():
    with deepspeed.zero.GatheredParameters([parameter]):
        apart = max(apart, float((parameter - trained(alone)[name]).abs().max()))
close = "close" if apart < 1e-6 else f"{apart} apart"
print(f"rank {rank}: {close}, {watching.report().proved} proved, still whole: {whole}\\n", end="", flush=True)
dist.barrier()
os._exit(0)  # DeepSpeed's threads may end a process with SIGABRT
"""


@pytest.mark.parametrize("trained", ["adapters", "all"])
@pytest.mark.parametrize("mode", ["non-reentrant", "reentrant"])
def test_two_ranks_train_as_one_process_does(trained: str, mode: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py")
    ran = python(tmp_path, *launch, trained, mode)
    assert ran.returncode == 0, ran.stderr
    said = sorted(line for line in ran.stdout.splitlines() if line.startswith("rank"))
    assert said == [f"rank {rank}: close, 3 proved, still whole: []" for rank in (0, 1)]
