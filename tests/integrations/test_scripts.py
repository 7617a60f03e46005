"""`run` on training scripts from packages: they print and save the same as without it, and blocks are proved."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("trl")

import torch
from safetensors.torch import load_file

from tests.integrations.local_files import LAYERS, data_folder, model_folder, python

pytestmark = pytest.mark.torch

REWARD = "def distinct_words(completions, **_):\n    return [float(len(set(text.split()))) for text in completions]\n"
COMMON = (
    "--model_name_or_path model --max_steps 4 --logging_steps 1 --report_to none --use_cpu --bf16 false --seed 1 "
    "--per_device_train_batch_size 2 --learning_rate 1e-2 --save_strategy no --disable_tqdm true"
)
ONLINE = "--reward_funcs rewards.distinct_words --num_generations 2 --max_completion_length 6 --beta 0.1"
ADAPTER = "--use_peft --lora_r 2 --lora_target_modules q_proj v_proj"


def script_of(package: str, path: str) -> str:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scripts")
    model_folder(made / "model")
    data_folder(made / "sft", "prompt", "completion")
    data_folder(made / "dpo", "prompt", "chosen", "rejected")
    data_folder(made / "grpo", "prompt")
    data_folder(made / "rloo", "prompt")
    data_folder(made / "kto", "prompt", "completion", "label")
    data_folder(made / "reward", "chosen", "rejected")
    (made / "rewards.py").write_text(REWARD, encoding="utf-8")
    return made


@pytest.mark.parametrize(
    ("name", "more", "model"),
    [
        ("sft", "", "LlamaForCausalLM"),
        ("dpo", "--gradient_accumulation_steps 2", "LlamaForCausalLM"),
        ("grpo", ONLINE, "LlamaForCausalLM"),
        ("rloo", ONLINE, "LlamaForCausalLM"),
        ("kto", "", "LlamaForCausalLM"),
        ("reward", "", "LlamaForSequenceClassification"),
        ("sft", ADAPTER, "PeftModel"),
        ("dpo", ADAPTER, "PeftModel"),
    ],
    ids=["sft", "dpo", "grpo", "rloo", "kto", "reward", "sft with an adapter", "dpo with an adapter"],
)
def test_a_script_of_trl_trains_the_same_and_is_proved(folder: Path, name: str, more: str, model: str) -> None:
    arguments = [script_of("trl", f"scripts/{name}.py"), *COMMON.split(), "--dataset_name", f"./{name}", *more.split()]
    bare = python(folder, *arguments, "--output_dir", "bare")
    report = ("--report", "report.json")
    ran = python(folder, "-m", "ckpt_surgery", "run", *report, *arguments, "--output_dir", "watched")
    assert (bare.returncode, ran.returncode) == (0, 0), bare.stderr + ran.stderr
    logged = re.compile(r"'(?:loss|grad_norm|reward|kl)': '[^']*'")
    assert logged.findall(ran.stdout) == logged.findall(bare.stdout) != []
    weights = "adapter_model.safetensors" if "--use_peft" in more else "model.safetensors"
    trained, expected = load_file(folder / "watched" / weights), load_file(folder / "bare" / weights)
    assert list(trained) == list(expected)
    assert all(torch.equal(trained[key], expected[key]) for key in expected)
    (seen,) = json.loads((folder / "report.json").read_text(encoding="utf-8"))["models"]
    assert seen["model"].startswith(model)
    assert (seen["ok"], seen["proved"]) == (True, LAYERS)
    assert f"{LAYERS} of {LAYERS} blocks checkpointed" in ran.stderr


@pytest.mark.parametrize("name", ["test_ops.py", "test_sync.py", "test_script.py"])
def test_a_script_of_accelerate_runs_the_same(folder: Path, name: str) -> None:
    path = script_of("accelerate", f"test_utils/scripts/{name}")
    bare, ran = python(folder, path), python(folder, "-m", "ckpt_surgery", "run", path)
    assert ran.returncode == bare.returncode == 0, bare.stderr + ran.stderr
    moment = re.compile(r"\d\d:\d\d:\d\d,\d+")
    assert moment.sub("", ran.stdout) == moment.sub("", bare.stdout)
