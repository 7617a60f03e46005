"""The YAML of accelerate's configurations is read as it is meant; what the reader does not understand, it refuses."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.scripts.yaml_subset import read_yaml

WRITTEN = """\
# made by accelerate config
---
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  zero3_init_flag: true
  zero_stage: 3   # the parameters too
distributed_type: 'DEEPSPEED'
downcast_bf16: 'no'
main_process_port: 29500
machines:
  - first: 1
    second: 2
  - third
names:
- one
- two
rdzv_backend: static
tpu_env: []
fsdp_config: {}
title: "a # that is no comment"
empty:
last: a#b
"""


def test_what_accelerate_writes_is_read() -> None:
    assert read_yaml(WRITTEN) == {
        "compute_environment": "LOCAL_MACHINE",
        "debug": "false",
        "deepspeed_config": {"zero3_init_flag": "true", "zero_stage": "3"},
        "distributed_type": "DEEPSPEED",
        "downcast_bf16": "no",
        "main_process_port": "29500",
        "machines": None,
        "names": None,
        "rdzv_backend": "static",
        "tpu_env": None,
        "fsdp_config": None,
        "title": "a # that is no comment",
        "empty": None,
        "last": "a#b",
    }


def test_lines_may_end_as_they_do_on_windows() -> None:
    assert read_yaml(WRITTEN.replace("\n", "\r\n")) == read_yaml(WRITTEN)


def test_an_empty_file_is_an_empty_mapping() -> None:
    assert read_yaml("# nothing\n\n") == {}


@pytest.mark.parametrize(
    "text",
    [
        "a: &anchor 1\n",
        "a: *anchor\n",
        "<<: *anchor\n",
        "a: !tag 1\n",
        "a: |\n  text\n",
        "a: >\n  text\n",
        "a: 1\na: 2\n",
        "a: [1,\n  2]\n",
        "a: {b: 1\n",
        "a: one\n  two\n",
        "a:\n    b: 1\n  c: 2\n",
        "a:\n\tb: 1\n",
        "a: 'it''s'\n",
        'a: "\\x41"\n',
        'a: "open\n',
        "a: b: c\n",
        "? a\n: b\n",
        "'a': 1\n",
        "- a\n- b\n",
        "a: 1\n---\na: 2\n",
        "a: 1\n...\n",
        "just a text\n",
        "a: ,1\n",
        "a: ]\n",
        "a: - b\n",
        "a: 1\x0b2\n",
        "%YAML 1.1\n---\na: 1\n",
        "  a: 1\nb: 2\n",
        "".join(f"{'  ' * depth}a:\n" for depth in range(2_000)),
    ],
)
def test_anything_else_is_refused_as_a_whole(text: str) -> None:
    assert read_yaml(text) is None


def test_it_agrees_with_the_full_reader() -> None:
    yaml = pytest.importorskip("yaml")
    full = {key: value for key, value in yaml.safe_load(WRITTEN).items() if not isinstance(value, list)}
    mine = read_yaml(WRITTEN)
    assert mine is not None
    assert {key: str(full[key]).lower() for key in full if isinstance(full[key], str | bool | int)} == {
        key: str(mine[key]).lower() for key in full if isinstance(full[key], str | bool | int)
    }
