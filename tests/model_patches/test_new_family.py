"""A contributor's new family: one file in `model_patches/` serves rules, tiny models and their inputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt_surgery
from tests.codemods.snippets import LAYERED
from tests.codemods.tools import tree

PACKAGE = Path(ckpt_surgery.__file__).parent
FAMILY = '''\
"""Acme: its blocks read planes beside the hidden states, and its head wants a mask of them (transformers 5.23.0)."""

GRADIENT = {"planes"}
TINY = {"acme": {"num_planes": 4}}
INPUTS = {"acme": {"planes": "floats(batch, num_planes, hidden_size)", "plane_mask": "ones(batch, num_planes)"}}
'''
MODEL = LAYERED.replace("Foo", "Acme").replace("hidden_states, attention_mask", "hidden_states, planes")
BY_KEYWORD = MODEL.replace("layer(hidden_states, planes)", "layer(hidden_states, planes=planes)")
TRAINED = """
import json, torch
from transformers import PretrainedConfig, PreTrainedModel
from ckpt_surgery.tiny import tiny_model

class AcmeConfig(PretrainedConfig):
    model_type = "acme"

    def __init__(self, hidden_size=512, num_planes=96, **kwargs):
        self.hidden_size, self.num_planes = hidden_size, num_planes
        super().__init__(**kwargs)

class AcmeModel(PreTrainedModel):
    config_class = AcmeConfig
    main_input_name = "planes"

    def __init__(self, config):
        super().__init__(config)
        self.proj = torch.nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(self, planes, plane_mask):
        return {"loss": (self.proj(planes)[..., 0] * plane_mask).square().mean()}

tiny = tiny_model(AcmeModel)
print(json.dumps({name: [*value.shape] for name, value in tiny.inputs.items()}))
"""


@pytest.fixture(scope="module", params=[False, True], ids=["without the file", "with the file"])
def is_known(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, is_known: bool) -> Path:
    """Copy the package, with the file added if the family is to be known."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(PACKAGE, folder / "ckpt_surgery", ignore=shutil.ignore_patterns("__pycache__"))
    if is_known:
        (folder / "ckpt_surgery" / "model_patches" / "acme.py").write_text(FAMILY, encoding="utf-8")
    return folder


def run(copy: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_rules_know_what_its_names_mean(copy: Path, is_known: bool, tmp_path: Path) -> None:
    root = tree(tmp_path, {"models/acme/modeling_acme.py": BY_KEYWORD})
    command = ["-m", "ckpt_surgery", "check", "--select", "CKPT003", "--output-format", "json", "models"]
    findings = json.loads(run(copy, *command, folder=root).stdout)["findings"]
    assert [finding["code"] for finding in findings] == ["CKPT003"] * is_known


@pytest.mark.both
def test_its_tiny_model_gets_its_sizes_and_its_inputs(copy: Path, is_known: bool, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done = run(copy, "-c", TRAINED, folder=tmp_path)
    if is_known:
        assert json.loads(done.stdout) == {"planes": [2, 4, 64], "plane_mask": [2, 4]}
    else:
        assert "no tiny AcmeModel can be made" in done.stderr
