"""The claims of CKPT014 in a real step: which layers run again in the backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codemods.tools import found, tree

pytestmark = [pytest.mark.torch, pytest.mark.both]


def runs(*, by_hand: bool) -> int:
    """Count how often the attention of a model with two layers runs in a training step."""
    import torch
    from transformers import SiglipVisionConfig, SiglipVisionModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    model, counted = SiglipVisionModel(SiglipVisionConfig(num_hidden_layers=2, **sizes)).train(), []
    for module in model.modules():
        if type(module).__name__ == "SiglipAttention":
            module.register_forward_hook(lambda *_: counted.append(1))
    if by_hand:
        model.gradient_checkpointing = True
    else:
        model.gradient_checkpointing_enable()
    model(pixel_values=torch.ones(1, 3, 8, 8)).last_hidden_state.sum().backward()
    return len(counted)


@pytest.mark.filterwarnings("ignore")
def test_the_flag_of_a_model_reaches_no_layer() -> None:
    assert (runs(by_hand=True), runs(by_hand=False)) == (2, 4)


@pytest.mark.parametrize(("requirement", "worth"), [("transformers>=4.40", "info"), ("transformers>=4.53", "unsafe")])
def test_it_is_information_where_older_releases_are_admitted(tmp_path: Path, requirement: str, worth: str) -> None:
    text = "from transformers import LlamaModel\n\nmodel = LlamaModel()\nmodel.gradient_checkpointing = True\n"
    project = f'[project]\nname = "tools"\ndependencies = ["{requirement}"]\n'
    root = tree(tmp_path, {"tools/run.py": text, "pyproject.toml": project})
    assert [finding.applicability.value for finding in found(root, "CKPT014")] == [worth]
