"""Training scripts: which files are scripts, and how their findings read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.scripts.collectives import may_call_collectives
from ckpt_surgery.static.check import check
from ckpt_surgery.static.render.machine import to_sarif
from ckpt_surgery.static.render.report import CheckReport
from tests.codemods.tools import tree

CODES = ("CKPT101", "CKPT102", "CKPT103", "CKPT104", "CKPT105", "CKPT106")
SCRIPT = """\
from torch.nn.parallel import DistributedDataParallel


def train(model, batch):
    ddp = DistributedDataParallel(model)
    ddp.module(batch).sum().backward()
"""


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("import torch.distributed as td\ntd.barrier()", True),
        ("from torch import distributed\ndistributed.all_reduce(x)", True),
        ("import torch\nwork = torch.distributed.barrier()", True),
        ("from torch.distributed import (\n    ReduceOp,\n    all_reduce,\n)\nall_reduce(x)", True),
        ("from torch.distributed import distributed_c10d as c10d\nc10d.broadcast(x, 0)", True),
        ("self.accelerator.wait_for_everyone()", True),
        ("from torch.distributed.fsdp import FullyShardedDataParallel\nx.gather(1, index)", False),
        ("import torch.distributed as td\nfunctools.reduce(add, parts)\ntd.get_rank()", False),
    ],
)
def test_collectives_are_looked_for_by_what_a_file_calls_them(text: str, may: bool) -> None:
    assert may_call_collectives(text) is may


def test_a_finding_names_the_function_and_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree(tmp_path, {"train.py": SCRIPT}))
    shown = CheckReport.of(check(["train.py"], select=CODES), RULES)
    assert shown.finding_lines(width=200)[:2] == [
        "train.py",
        "  6:5 CKPT101 [unsafe] train: ddp.module(...) runs the module inside DistributedDataParallel: the "
        "backward on line 6 synchronises no gradient; call the wrapper, or sync_gradients(model) before the",
    ]
    (result,) = json.loads(to_sarif(shown, "0"))["runs"][0]["results"]
    assert result["locations"][0]["logicalLocations"] == [{"name": "train", "kind": "function"}]
