"""The command `pr` from end to end on a released transformers, with its models run before and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import ckpt_surgery.upstream
from tests.upstream.git_toys import state
from tests.upstream.released import repository
from tests.upstream.toy_checkout import git

THREE = ("swiftformer", "zamba", "zamba2")
REPRODUCED = {"swiftformer"}
"""The family whose fault in 4.57.6 `verify` shows: the inline branches of the others checkpoint."""
IMPORTED = ("auto", "encoder_decoder", "llama", "mamba2")
"""Other families that these import, or that their modular files do."""
BRANCH = "ckpt-surgery/all"
PACKAGE = Path(ckpt_surgery.upstream.__file__).parent
IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"

pytestmark = [pytest.mark.torch, pytest.mark.transformers4, pytest.mark.slow]


def pr(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt_surgery", "pr", str(checkout), *arguments]
    return subprocess.run(command, cwd=checkout.parent, capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Made:
    checkout: Path
    before: dict[str, bytes]
    folder: Path
    done: subprocess.CompletedProcess[str]

    @property
    def evidence(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "evidence.json").read_text(encoding="utf-8"))
        return document

    def patches(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.glob("*.patch")}


def made_of(place: Path, *families: str, options: tuple[str, ...] = ()) -> Made:
    checkout = repository("4.57.6", place / "transformers", {*families, *IMPORTED})
    before = state(checkout)
    done = pr(checkout, "--families", ",".join(families), "--group-by", "all", "--out", "out", "--jobs", "1", *options)
    return Made(checkout, before, place / "out" / "all", done)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("three")
    return made_of(place, *THREE, options=("--include-unreproduced",))


def test_a_series_of_three_families_is_made_and_says_what_was_not_checked(three: Made) -> None:
    assert three.done.returncode == 1, three.done.stderr
    assert f"{BRANCH}: not ready (2 commits" in three.done.stdout
    evidence = three.evidence
    # zamba2's modular file takes zamba's layers: neither is whole without the other
    assert [commit["families"] for commit in evidence["commits"]] == [["swiftformer"], ["zamba", "zamba2"]]
    assert any("this checkout has neither utils/checkers.py" in reason["text"] for reason in evidence["reasons"])
    schema = json.loads((PACKAGE / "evidence/evidence.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(evidence, schema)


def test_every_class_checkpoints_as_after_upstreams_own_repair(three: Made) -> None:
    rows = three.evidence["rows"]
    assert {row["family"] for row in rows} == set(THREE)
    assert len({row["model"] for row in rows}) == 8
    left = {(row["family"], row["mode"], *row["after"]) for row in rows if row["after"]}
    # transformers 5 has the same: running statistics are updated again by the recompute, and zamba's Mamba layer is
    # a block by itself and inside another, so that reentrant checkpointing runs it once more
    assert left == {
        ("swiftformer", "non_reentrant", "state"),
        ("swiftformer", "reentrant", "state"),
        ("zamba", "reentrant", "recompute"),
        ("zamba2", "reentrant", "recompute"),
    }
    assert {row["family"] for row in rows if row["verdict"] in ("repaired", "partly repaired")} == REPRODUCED
    text = "\n".join(reason["text"] for reason in three.evidence["reasons"])
    assert text.startswith("ZambaForCausalLM, ZambaForSequenceClassification, ZambaModel, Zamba2ForCausalLM, ")
    assert "(reentrant): failing after the repair and not before: recompute" in text
    assert "zamba and zamba2: verify shows no fault that the repair removes" in text


def test_git_am_on_a_fresh_clone_gives_the_branch_and_all_of_it_imports(three: Made, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--branch=main", str(three.checkout), str(clone))
    git(clone, "config", "user.name", "Another")
    git(clone, "config", "user.email", "another@example.com")
    for commit, name in zip(three.evidence["commits"], sorted(three.patches()), strict=True):
        git(clone, "am", "--quiet", str(three.folder / name))
        assert git(clone, "rev-parse", "HEAD^{tree}") == git(three.checkout, "rev-parse", f"{commit['sha']}^{{tree}}")
        assert commit["imported"]["code"] == 0
    modules = [f"transformers.models.{family}.modeling_{family}" for family in THREE]
    environment = {**os.environ, "PYTHONPATH": str(clone / "src")}
    done = subprocess.run([sys.executable, "-c", IMPORT, *modules], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert git(clone, "rev-parse", "HEAD^{tree}") == git(three.checkout, "rev-parse", f"{BRANCH}^{{tree}}")


def test_a_family_that_shows_no_fault_is_left_out(tmp_path: Path) -> None:
    made = made_of(tmp_path, "gpt_bigcode", "xlstm")
    assert made.done.returncode == 0, made.done.stderr
    assert f"{BRANCH}: unchecked (1 commit, 1 file, 4 classes repaired)" in made.done.stdout
    assert "\nLeft out: xlstm\n  verify finds no fault in it as it is" in made.done.stdout
