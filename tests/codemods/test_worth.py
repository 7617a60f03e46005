"""The files that a check parses; no other file can have findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.facts.checkpoint_helpers import speaks_of_checkpointing
from ckpt_surgery.codemods.worth import worth_parsing
from ckpt_surgery.static.check import check
from tests.codemods.tools import tree

MODEL = """
from torch import nn
from transformers import PreTrainedModel
{imports}

class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(2)])

    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states
"""
BLOCK = """
from torch import nn

class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(4, 1)

    def forward(self, hidden_states):
        return self.self_attn(hidden_states)
"""
DATA = "import json\n\n\nclass Reader:\n    def read(self, path):\n        return json.load(open(path))\n"


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils.checkpoint import checkpoint as remat",
        "import torch.utils.checkpoint as cp",
        "from torch.utils import checkpoint",
        "from .memory import offload, checkpoint",
        "from .memory import (\n    offload,\n    checkpoint,\n)",
        "from .memory import (\n    offload,\n    checkpoint\n)",
        "x = maybe_checkpoint(block, x)",
        "x = deepspeed.checkpointing.checkpoint(block, x)",
        "model.gradient_checkpointing_enable()",
        "class Foo(GradientCheckpointingLayer): ...",
    ],
)
def test_files_that_may_checkpoint_are_about_checkpointing(text: str) -> None:
    assert speaks_of_checkpointing(f"import os\n{text}\n")


@pytest.mark.parametrize(
    "text",
    [
        "# Load checkpoint",
        "torch.load(args.checkpoint)",
        "checkpoint_path = None",
        "latest = checkpoint",
        "def save_checkpoint(model): ...",
        "model = load_checkpoint_and_dispatch(model)",
        "callbacks = [ModelCheckpoint(monitor='loss')]",
        "shards = get_checkpoint_files(folder)",
        "model = Net.load_from_checkpoint(path)",
        "last = get_last_checkpoint(folder)",
    ],
)
def test_files_about_weights_are_not_about_checkpointing(text: str) -> None:
    assert not speaks_of_checkpointing(f"import os\n{text}\n")


@pytest.mark.parametrize(
    ("imports", "files"),
    [
        ("from .blocks import FooLayer", {"foo/blocks.py": BLOCK}),
        ("from foo.blocks import FooLayer", {"foo/blocks.py": BLOCK}),
        (
            "from .parts import FooLayer",
            {"foo/parts/__init__.py": "from .blocks import *\n", "foo/parts/blocks.py": BLOCK},
        ),
        ("from . import blocks\nFooLayer = blocks.FooLayer", {"foo/blocks.py": BLOCK}),
        (
            "from .maker import FooLayer",
            {
                "foo/maker.py": "from .blocks import Foo\n\n\ndef FooLayer(config): return Foo(config)\n",
                "foo/blocks.py": BLOCK.replace("FooLayer", "Foo"),
            },
        ),
        (
            "from .blocks import FooLayer",
            {"foo/blocks.py": "from .base import Base\n\n\nclass FooLayer(Base): ...\n", "foo/base.py": BLOCK},
        ),
    ],
)
def test_what_imports_join_to_a_model_is_parsed(imports: str, files: dict[str, str]) -> None:
    texts = {"foo/model.py": MODEL.format(imports=imports), "foo/data.py": DATA, **files}
    assert worth_parsing(texts) == {"foo/model.py", *(path for path, text in files.items() if "import" in text)}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("foo/weights.py", BLOCK + "\n\ndef load(checkpoint): ...\n"),
        ("foo/other.py", MODEL.format(imports="from .blocks import FooLayer")),
        ("bar/blocks.py", BLOCK),
        ("bar/copy.py", f"# Copied from diffusers.blocks.FooLayer\n{BLOCK}"),
    ],
    ids=["it holds weights", "it shares a block", "its name is another folder's", "it is a copy of no transformers"],
)
def test_what_leads_to_no_checkpointing_is_not_parsed(path: str, text: str) -> None:
    text = text.replace("supports_gradient_checkpointing", "supports_cache")
    texts = {"foo/model.py": MODEL.format(imports="from .blocks import FooLayer"), "foo/blocks.py": BLOCK}
    assert worth_parsing({**texts, path: text}) == texts.keys()


def test_a_model_that_inherits_the_claim_is_parsed() -> None:
    base = "class Base(PreTrainedModel):\n    supports_gradient_checkpointing = True\n"
    child = MODEL.format(imports="from .base import Base").replace("    supports_gradient_checkpointing = True\n", "")
    texts = {"foo/base.py": base, "foo/child.py": child, "foo/other.py": child.replace(".base", ".else")}
    assert worth_parsing(texts) == {"foo/base.py", "foo/child.py"}


def test_a_script_is_parsed_and_joins_nothing() -> None:
    script = (
        "from torch.distributed import barrier\nfrom net import Net\nif rank == 0:\n    barrier()\nloss.backward()\n"
    )
    assert worth_parsing({"train.py": script, "net.py": BLOCK}) == {"train.py"}


def test_a_function_that_makes_blocks_is_read_from_where_it_is_defined(tmp_path: Path) -> None:
    # It is the last of a file whose last line has no end.
    maker = "from .blocks import Foo\n\n\ndef FooLayer(config):\n    block = Foo(config)\n    return block"
    files = {"foo/model.py": MODEL.format(imports="from .maker import FooLayer"), "foo/maker.py": maker}
    root = tree(tmp_path, {**files, "foo/blocks.py": BLOCK.replace("FooLayer", "Foo")})
    (finding,) = check([root], jobs=1).findings
    assert (finding.code, Path(finding.path).name) == ("CKPT001", "blocks.py")


def test_a_file_that_can_hold_no_finding_is_parsed_only_when_named(tmp_path: Path) -> None:
    root = tree(tmp_path, {"foo/model.py": MODEL.format(imports="") + BLOCK, "foo/old.py": 'print "x"\n'})
    result = check([root], jobs=1)
    assert (result.files, len(result.problems)) == (2, 0)
    assert [finding.code for finding in result.findings] == ["CKPT001"]
    assert len(check([root, root / "foo/old.py"], jobs=1).problems) == 1
