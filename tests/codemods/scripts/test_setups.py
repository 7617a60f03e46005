"""The strategy that a configuration file sets."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.facts.launch_facts import UNKNOWN_SETUP, ConfigurationKind, LaunchSetup, Strategy
from ckpt_surgery.codemods.scripts.setups import read_setup

ACCELERATE, DEEPSPEED, FSDP = ConfigurationKind.ACCELERATE, ConfigurationKind.DEEPSPEED, ConfigurationKind.FSDP


@pytest.mark.parametrize(
    ("text", "kind", "setup"),
    [
        ("distributed_type: 'NO'\n", ACCELERATE, LaunchSetup(Strategy.ONE_PROCESS)),
        ("distributed_type: NO\n", ACCELERATE, LaunchSetup(Strategy.ONE_PROCESS)),
        (
            "# by hand\r\n---\r\ndistributed_type: MULTI_GPU\r\nmachines: [1,\r\n  2]\r\n",
            ACCELERATE,
            LaunchSetup(Strategy.DDP),
        ),
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
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_activation_checkpointing: 'True'\n",
            ACCELERATE,
            LaunchSetup(Strategy.FSDP, activation_checkpointing=True),
        ),
        ("distributed_type: FSDP\n", ACCELERATE, LaunchSetup(Strategy.FSDP)),
        ("1: 2\ndistributed_type: FSDP\n", ACCELERATE, LaunchSetup(Strategy.FSDP)),
        ("# nothing\n\n", ACCELERATE, UNKNOWN_SETUP),
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
    assert read_setup(text, kind, lambda name: None) == setup


@pytest.mark.parametrize(
    "text",
    [
        "distributed_type: *type\n",
        "a: &anchor 1\n",
        "a: !!timestamp x\n",
        "a: 2026-99-99\n",
        "a: 'open\n",
        "a:\n\tb: 1\n",
        "just a text\n",
        "a: 1\n---\na: 2\n",
        "? [a, b]\n: c\n",
        f"a: {'[' * 1_000}\n",
        "a: 1\n" * 20_001,
        '{"a": 1',
        "[1]",
        '{"a": ' * 10_000,
        "a\0b",
    ],
)
@pytest.mark.parametrize("kind", list(ConfigurationKind))
def test_a_file_that_is_not_understood_says_nothing(text: str, kind: ConfigurationKind) -> None:
    assert read_setup(text, kind, lambda name: None) is None


@pytest.mark.parametrize(
    ("file", "setup"),
    [
        ("ds/zero3.json", LaunchSetup(Strategy.ZERO, 3)),
        ("broken.json", None),
        ("missing.json", LaunchSetup(Strategy.ZERO)),
        ("none", LaunchSetup(Strategy.ZERO)),
    ],
)
def test_an_accelerate_configuration_may_leave_the_rest_to_deepspeeds(file: str, setup: LaunchSetup | None) -> None:
    files = {"ds/zero3.json": '{"zero_optimization": {"stage": 3}}', "broken.json": "{"}
    text = f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: {file}\n"
    assert read_setup(text, ACCELERATE, files.get) == setup
