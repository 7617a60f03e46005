"""The configuration files that a script names: where they are looked for, and that no finding outlives a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.static.check import check
from tests.codemods.tools import tree

SCRIPT = """\
from transformers import Trainer, TrainingArguments

# accelerate launch --config_file {name} train.py
arguments = TrainingArguments("out", gradient_checkpointing_kwargs={{"use_reentrant": True}})
Trainer(model, arguments).train()
"""
SEVERAL = "distributed_type: MULTI_GPU\n"
ZERO = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"


def applicability(path: Path) -> list[Applicability]:
    return [finding.applicability for finding in check(path, select="CKPT104").findings]


def script(root: Path, files: dict[str, str | bytes], name: str = "configs/a.yaml", at: str = "train.py") -> Path:
    """Make a script that names a configuration, and the files beside it."""
    tree(root, {at: SCRIPT.format(name=name)})
    for file, text in files.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root / at


@pytest.mark.parametrize("at", ["train.py", "scripts/train.py", "examples/scripts/train.py"])
def test_a_configuration_is_found_beside_the_script_and_above(tmp_path: Path, at: str) -> None:
    assert applicability(script(tmp_path, {"configs/a.yaml": SEVERAL}, at=at)) == [Applicability.SAFE]


def test_the_nearest_configuration_below_the_repository_counts(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"configs/a.yaml": ZERO, "scripts/configs/a.yaml": SEVERAL}
    assert applicability(script(tmp_path, files, at="scripts/train.py")) == [Applicability.SAFE]
    path = script(tmp_path / "1", {"configs/a.yaml": SEVERAL}, at="mine/train.py")
    (tmp_path / "1" / "mine" / ".git").mkdir()
    assert applicability(path) == [Applicability.UNSAFE]


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"distributed_type: &a MULTI_GPU\n", b"\0"])
def test_a_file_that_cannot_be_read_leaves_the_launcher_unknown(tmp_path: Path, text: bytes) -> None:
    assert applicability(script(tmp_path, {"configs/a.yaml": text})) == [Applicability.UNSAFE]


def test_a_configuration_that_changes_comes_or_goes_changes_the_findings(tmp_path: Path) -> None:
    path = script(tmp_path, {})
    configuration = tmp_path / "configs" / "a.yaml"
    configuration.parent.mkdir()
    seen = []
    for text in (None, SEVERAL, ZERO, SEVERAL):
        if text:
            configuration.write_text(text)
        seen.append([applicability(path), applicability(path)])
    configuration.unlink()
    seen.append([applicability(path), applicability(path)])
    safe, unsafe = [Applicability.SAFE], [Applicability.UNSAFE]
    assert seen == [[unsafe] * 2, [safe] * 2, [[]] * 2, [safe] * 2, [unsafe] * 2]
