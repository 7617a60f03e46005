"""The claims of CKPT108 on scripts and embeddings in a real step: each script is checked and run."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from ckpt_surgery.codemods.finding import Applicability
from tests.codemods.tools import found, tree

pytestmark = [pytest.mark.both, pytest.mark.torch]
HOOKS_ITSELF = int(transformers.__version__.split(".")[0]) >= 5
"""Whether switching checkpointing on makes the embeddings need gradient."""
REENTRANT = 'net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})'
NON_REENTRANT = REENTRANT.replace("True", "False")
FROZEN = "net.get_input_embeddings().requires_grad_(False)"
ADAPTERS = 'net = get_peft_model(net, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))'
HEAD = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
net = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=1, num_key_value_heads=1)).train()
"""
PEFT = f"from peft import LoraConfig, get_peft_model\n{HEAD}"
OWN_ADAPTERS = 'net.add_adapter(LoraConfig(target_modules=["q_proj"], init_lora_weights=False))'
SCRIPTS = {
    "frozen embeddings": (HEAD, [FROZEN, REENTRANT], True),
    "frozen embeddings, not reentrant": (HEAD, [FROZEN, NON_REENTRANT], False),
    "frozen embeddings that are asked for a gradient": (
        HEAD,
        [FROZEN, REENTRANT, "net.enable_input_require_grads()"],
        False,
    ),
    "all frozen but the last block": (
        HEAD,
        ["net.requires_grad_(False)", "net.model.layers[-1].requires_grad_()", REENTRANT],
        True,
    ),
    "all frozen but the head": (
        HEAD,
        ["net.requires_grad_(False)", "net.lm_head.requires_grad_(True)", REENTRANT],
        False,
    ),
    "adapters, then the switch": (PEFT, [ADAPTERS, REENTRANT], True),
    "the switch, then adapters": (PEFT, [REENTRANT, ADAPTERS], False),
    "adapters, not reentrant": (PEFT, [ADAPTERS, NON_REENTRANT], False),
    "the switch, then adapters of transformers": (PEFT, [REENTRANT, OWN_ADAPTERS], True),
    "adapters of transformers, then the switch": (PEFT, [OWN_ADAPTERS, REENTRANT], False),
}


def trains(net: Any) -> bool:
    """Tell whether every block gets a gradient in a step."""
    ids = torch.arange(4)[None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = net(input_ids=ids, labels=ids).loss
        if loss.requires_grad:
            loss.backward()
    blocks = [part for name, part in net.named_parameters() if ".layers." in name and part.requires_grad]
    return all(part.grad is not None and bool(part.grad.any()) for part in blocks)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_its_blocks_unless_it_has_a_finding(name: str, tmp_path: Path) -> None:
    head, lines, faulty = SCRIPTS[name]
    if head is not HEAD:
        pytest.importorskip("peft")
    root = tree(tmp_path, {"train.py": "\n".join([head, *lines])})
    assert bool(found(root, "CKPT108")) is faulty
    assert trains(runpy.run_path(str(root / "train.py"))["net"]) is (HOOKS_ITSELF or not faulty)


def test_from_transformers_5_the_switch_gives_the_embeddings_a_gradient(tmp_path: Path) -> None:
    tree(tmp_path, {"train.py": "\n".join([HEAD, FROZEN, REENTRANT])})
    net = runpy.run_path(str(tmp_path / "train.py"))["net"]
    assert bool(net.get_input_embeddings()._forward_hooks) is HOOKS_ITSELF
    if HOOKS_ITSELF:
        net.disable_input_require_grads()
        assert not trains(net)


@pytest.mark.parametrize(
    ("requirement", "worth"),
    [
        ("", Applicability.INFO),
        ("transformers>=4.40", Applicability.INFO),
        ("transformers==4.57.6", Applicability.UNSAFE),
    ],
)
def test_the_default_is_a_fault_where_only_old_releases_are_admitted(
    requirement: str, worth: Applicability, tmp_path: Path
) -> None:
    script = "\n".join([HEAD, FROZEN, "net.gradient_checkpointing_enable()"])
    tree(tmp_path, {"train.py": script, "requirements.txt": f"{requirement}\n"})
    assert [finding.applicability for finding in found(tmp_path, "CKPT108")] == [worth]


def test_releases_that_all_hook_the_embeddings_bring_no_finding(tmp_path: Path) -> None:
    tree(tmp_path, {"train.py": "\n".join([HEAD, FROZEN, REENTRANT]), "requirements.txt": "transformers>=5.0\n"})
    assert not found(tmp_path, "CKPT108")


MODEL = f"""
{HEAD}

class Net(LlamaForCausalLM):
    def step(self, ids, mask, image):
        states = self.get_input_embeddings()(ids)
        WRITE
        return self(inputs_embeds=states, labels=ids).loss


net = Net(net.config).train()
"""


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(
    ("write", "faulty"),
    [
        ("states[mask] = image", True),
        ("states += image", True),
        ("states.masked_scatter_(mask[..., None], image)", True),
        ("states = states.masked_scatter(mask[..., None], image)", False),
    ],
)
def test_frozen_embeddings_that_need_gradient_cannot_be_written(
    write: str, faulty: bool, frozen: bool, tmp_path: Path
) -> None:
    root = tree(tmp_path, {"train.py": MODEL.replace("WRITE", write)})
    assert bool(found(root, "CKPT108")) is faulty
    net = runpy.run_path(str(root / "train.py"))["net"]
    net.get_input_embeddings().requires_grad_(not frozen)
    net.enable_input_require_grads()
    arguments = torch.arange(4)[None], torch.ones(1, 4, dtype=torch.bool), torch.ones(4, 8)
    if faulty and frozen:
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            net.step(*arguments)
    else:
        net.step(*arguments).backward()
