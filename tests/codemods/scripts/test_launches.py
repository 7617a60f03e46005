"""Commands in a script's header: their words, what they start, and with which strategy."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.facts.launch_facts import (
    UNKNOWN_SETUP,
    Configuration,
    ConfigurationKind,
    LaunchSetup,
    Strategy,
)
from ckpt_surgery.codemods.scripts.launches import commands

DDP, ZERO, FSDP = LaunchSetup(Strategy.DDP), LaunchSetup(Strategy.ZERO), LaunchSetup(Strategy.FSDP)


@pytest.mark.parametrize(
    ("text", "script", "setup", "file"),
    [
        ("torchrun --nproc-per-node 8 scripts/train.py --lr 1", "train.py", DDP, ""),
        ("# $ CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=2 train.py", "train.py", DDP, ""),
        ("python -m torch.distributed.launch --nproc_per_node 2 train.py", "train.py", DDP, ""),
        ("accelerate launch train.py", "train.py", UNKNOWN_SETUP, ""),
        ("accelerate launch --multi_gpu train.py", "train.py", DDP, ""),
        ("accelerate launch --config_file a.yaml train.py", "train.py", UNKNOWN_SETUP, "a.yaml"),
        ("accelerate launch --config_file=a.yaml train.py", "train.py", UNKNOWN_SETUP, "a.yaml"),
        ("accelerate launch \\\n#   --config_file a.yaml \\\n#   train.py \\\n", "train.py", UNKNOWN_SETUP, "a.yaml"),
        ("accelerate launch --config_file a.yaml -m mine.train x.yml", "train.py", UNKNOWN_SETUP, "a.yaml"),
        ("accelerate launch --use_deepspeed --zero_stage 3 train.py", "train.py", LaunchSetup(Strategy.ZERO, 3), ""),
        ("accelerate launch --use_deepspeed --deepspeed_config_file d.json train.py", "train.py", ZERO, "d.json"),
        (
            "accelerate launch --use_fsdp --fsdp_activation_checkpointing true train.py",
            "train.py",
            LaunchSetup(Strategy.FSDP, activation_checkpointing=True),
            "",
        ),
        ("accelerate launch --use_fsdp --fsdp_activation_checkpointing false train.py", "train.py", FSDP, ""),
        ("deepspeed --num_gpus 8 train.py", "train.py", UNKNOWN_SETUP, ""),
        ("deepspeed train.py --deepspeed --deepspeed_config d.json", "train.py", ZERO, "d.json"),
        ("torchrun train.py --deepspeed d.json", "train.py", ZERO, "d.json"),
        ("torchrun train.py --fsdp 'full_shard auto_wrap' --fsdp_config f.json", "train.py", FSDP, "f.json"),
        ("Run it with `torchrun train.py` (or --deepspeed d.json).", "train.py", DDP, ""),
    ],
)
def test_a_command_is_read(text: str, script: str, setup: LaunchSetup, file: str) -> None:
    (launch,) = commands(text)
    assert (launch.script, launch.setup, launch.line) == (script, setup, 1)
    assert (launch.configuration.name if launch.configuration else "") == file


@pytest.mark.parametrize(
    "text",
    [
        "torchrun sets LOCAL_RANK before train.py starts",
        "from deepspeed import zero",
        "import deepspeed",
        "deepspeed is needed by train.py",
        "python train.py --lr 1",
        "accelerate launch --help",
        "my_torchrun --x train.py",
    ],
)
def test_words_that_start_no_script_are_no_command(text: str) -> None:
    assert list(commands(text)) == []


@pytest.mark.parametrize(
    ("options", "adapters", "checkpointing"),
    [
        ("", "", False),
        ("--use_peft", "--use_peft", False),
        ("--use_peft True --gradient_checkpointing", "--use_peft", True),
        ("--use_peft=False --gradient_checkpointing=false", "", False),
        ("--lora_enable 'True' --activation_checkpointing true", "--lora_enable", True),
        ("--note 'never closed --use_peft", "--use_peft", False),
    ],
)
def test_a_command_says_what_the_script_is_asked_for(options: str, adapters: str, checkpointing: bool) -> None:
    (launch,) = commands(f"torchrun train.py {options}")
    assert (launch.adapters, launch.checkpointing) == (adapters, checkpointing)


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ("recipe.yaml", "recipe.yaml"),
        ("--config recipe.yaml", "recipe.yaml"),
        ("--lr 1 --args_file=a.json", "a.json"),
        ("--data_path data.json", ""),
        ("--deepspeed_config d.json", "d.json"),
        ("--fsdp full_shard --fsdp_config f.json", "f.json"),
        ("", ""),
        ("--lr 1 ...", "..."),
        ("--output_dir $OUT --lr <lr>", ""),
        ('--lr $LR "$@"', "$@"),
        ("--bf16=true <options>", "<options>"),
        ("<options>", "<options>"),
        ("[--lr LR]", "[--lr"),
    ],
)
def test_a_command_may_name_the_file_of_the_arguments(options: str, file: str) -> None:
    (launch,) = commands(f"torchrun train.py {options}")
    assert launch.arguments == file


def test_each_command_has_its_own_line_and_configuration() -> None:
    first, second = commands("torchrun train.py\n\naccelerate launch --config_file b.yaml train.py\n")
    assert (first.line, second.line) == (1, 3)
    assert second.configuration == Configuration("b.yaml", ConfigurationKind.ACCELERATE)
