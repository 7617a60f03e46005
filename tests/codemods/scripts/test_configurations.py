"""What a configuration file says of the strategy."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.facts.launch_facts import UNKNOWN_SETUP, ConfigurationKind, LaunchSetup, Strategy
from ckpt_surgery.codemods.scripts.configurations import deepspeed_file, read_setup

ACCELERATE, DEEPSPEED, FSDP = ConfigurationKind.ACCELERATE, ConfigurationKind.DEEPSPEED, ConfigurationKind.FSDP


@pytest.mark.parametrize(
    ("text", "kind", "setup"),
    [
        ("distributed_type: 'NO'\n", ACCELERATE, LaunchSetup(Strategy.ONE_PROCESS)),
        ("distributed_type: MULTI_GPU\n", ACCELERATE, LaunchSetup(Strategy.DDP)),
        ("distributed_type: MULTI_XPU\n", ACCELERATE, LaunchSetup(Strategy.DDP)),
        ("distributed_type: MEGATRON_LM\n", ACCELERATE, LaunchSetup(Strategy.OTHER)),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n",
            ACCELERATE,
            LaunchSetup(Strategy.ZERO, 3),
        ),
        ("distributed_type: DEEPSPEED\n", ACCELERATE, LaunchSetup(Strategy.ZERO)),
        ("distributed_type: MULTI_GPU\ndeepspeed_config:\n  zero_stage: 3\n", ACCELERATE, LaunchSetup(Strategy.DDP)),
        ('{"distributed_type": "MULTI_GPU"}', ACCELERATE, LaunchSetup(Strategy.DDP)),
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_activation_checkpointing: true\n",
            ACCELERATE,
            LaunchSetup(Strategy.FSDP, activation_checkpointing=True),
        ),
        ("distributed_type: FSDP\n", ACCELERATE, LaunchSetup(Strategy.FSDP)),
        ("base_model: x\n", ACCELERATE, UNKNOWN_SETUP),
        ("distributed_type:\n  - MULTI_GPU\n", ACCELERATE, UNKNOWN_SETUP),
        ('{"zero_optimization": {"stage": 3}}', DEEPSPEED, LaunchSetup(Strategy.ZERO, 3)),
        ('{"zero_optimization": {"stage": "auto"}}', DEEPSPEED, LaunchSetup(Strategy.ZERO)),
        ('{"zero_optimization": []}', DEEPSPEED, LaunchSetup(Strategy.ZERO)),
        ('{"fp16": {}}', DEEPSPEED, LaunchSetup(Strategy.ZERO, 0)),
        ('{"activation_checkpointing": "True"}', FSDP, LaunchSetup(Strategy.FSDP, activation_checkpointing=True)),
        ('{"fsdp_activation_checkpointing": false}', FSDP, LaunchSetup(Strategy.FSDP)),
    ],
)
def test_a_file_says_the_strategy(text: str, kind: ConfigurationKind, setup: LaunchSetup) -> None:
    assert read_setup(text, kind) == setup


@pytest.mark.parametrize("text", ["distributed_type: *type\n", '{"a": 1', "[1]", '{"a": ' * 100_000, "a\0b"])
@pytest.mark.parametrize("kind", list(ConfigurationKind))
def test_a_file_that_is_not_understood_says_nothing(text: str, kind: ConfigurationKind) -> None:
    assert read_setup(text, kind) is None


def test_an_accelerate_configuration_may_leave_the_rest_to_deepspeeds() -> None:
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: {}\n"
    assert deepspeed_file(text.format("ds/zero3.json")) == "ds/zero3.json"
    assert deepspeed_file(text.format("none")) == ""
    assert deepspeed_file("distributed_type: DEEPSPEED\n") == ""
