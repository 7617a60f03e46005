"""The pages for a model's repository: what they say in each case, and that nothing is overwritten."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_surgery.adopt.pages import check_output, documents, write_pages
from ckpt_surgery.adopt.proof import Adoption, ClassProof
from ckpt_surgery.adopt.source import AdoptError, ModelFolder
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import MODES
from tests.adopt.examples import BAD, GOOD, REENTRANT_BAD, UNBUILT, UNSUPPORTED, adoption, mode_report, report
from tests.zoo.own_code_shapes import write_shape

NAMES = ["repair.diff", "model_card.md", "pull_request.md", "adopt.json"]


def page(found: Adoption, name: str) -> str:
    return documents(found)[name].decode()


class TestTheModelCard:
    def test_of_a_repaired_model_says_how_to_switch_it_on(self, tmp_path: Path) -> None:
        card = page(adoption(tmp_path / "toy", ClassProof(BAD, GOOD)), "model_card.md")
        assert card.startswith(
            "## Gradient checkpointing\n\n<!-- This describes the code with repair.diff applied. -->"
        )
        assert "`ToyModel` supports gradient checkpointing." in card
        assert "| `False` | yes | 1.0 KiB kept for the backward pass, 8.0 KiB without |" in card
        assert 'model = AutoModel.from_pretrained("toy", trust_remote_code=True)' in card
        assert 'model.gradient_checkpointing_enable({"use_reentrant": False})' in card
        assert "Verified with ckpt_surgery 0.1.0, torch 2.13.0 and transformers 5.23.0:" in card

    def test_names_no_repair_that_is_written_or_needless(self, tmp_path: Path) -> None:
        written = replace(adoption(tmp_path / "one", ClassProof(BAD, GOOD)), written=True)
        healthy = adoption(tmp_path / "two", ClassProof(GOOD), shape="healthy")
        for found in (written, healthy):
            assert "repair.diff" not in page(found, "model_card.md")

    def test_names_the_only_mode_that_works(self, tmp_path: Path) -> None:
        card = page(adoption(tmp_path, ClassProof(BAD, REENTRANT_BAD)), "model_card.md")
        assert "supports gradient checkpointing with `use_reentrant=False` only." in card
        assert "| `True` | no: `set` |" in card
        assert "What fails:\n\n- `reentrant`, `set`: " in card

    def test_of_a_model_that_fails_advises_against_it(self, tmp_path: Path) -> None:
        card = page(adoption(tmp_path, ClassProof(BAD), shape="by hand"), "model_card.md")
        assert "Gradient checkpointing does not work correctly in `ToyModel`: train without it." in card
        assert "gradient_checkpointing_enable" not in card

    def test_of_what_was_not_measured_claims_nothing(self, tmp_path: Path) -> None:
        other = replace(UNBUILT, model="ToyHead")
        card = page(adoption(tmp_path, ClassProof(UNSUPPORTED), ClassProof(other), shape="healthy"), "model_card.md")
        assert "`ToyModel` says that it does not support gradient checkpointing." in card
        assert "`ToyHead` could not be measured: no tiny ToyModel can be made" in card
        assert "supports gradient checkpointing." not in card.replace("not support gradient checkpointing.", "")

    def test_lists_only_what_was_compared(self, tmp_path: Path) -> None:
        few = report(*(mode_report(mode, skipped=("cost", "loop", "precision", "ranks")) for mode in MODES))
        card = page(adoption(tmp_path, ClassProof(few), shape="healthy"), "model_card.md")
        assert "compared: recomputed blocks, gradients and buffers and random numbers." in card


class TestThePullRequest:
    def test_says_what_was_wrong_what_changes_and_what_was_measured(self, tmp_path: Path) -> None:
        text = page(adoption(tmp_path, ClassProof(BAD, GOOD)), "pull_request.md")
        assert text.startswith(
            "# Repair gradient checkpointing in `ToyModel`\n\n## What was wrong\n\n- `modeling_toy.py:"
        )
        assert "- `modeling_toy.py` (CKPT002, CKPT003)" in text
        assert "which came with transformers 4.52" in text
        assert "### `ToyModel`: repaired" in text
        assert "| level | non_reentrant | non_reentrant, after | reentrant | reentrant, after |" in text
        assert "| `set`: no gradient is lost | FAILED | ok | FAILED | ok |" in text
        assert "| memory kept for the backward pass | 8.0 KiB of 8.0 KiB | 1.0 KiB of 8.0 KiB |" in text
        assert "$ git apply repair.diff\n" in text
        assert "No fault was measured before" not in text

    def test_says_where_nothing_was_measured_to_be_wrong(self, tmp_path: Path) -> None:
        text = page(adoption(tmp_path, ClassProof(GOOD, GOOD)), "pull_request.md")
        assert "No fault was measured before the repair either" in text

    def test_of_a_repair_that_was_refused_begins_with_that(self, tmp_path: Path) -> None:
        text = page(adoption(tmp_path, ClassProof(GOOD, BAD)), "pull_request.md")
        banner = text.split("\n\n")[1]
        assert banner.startswith("> **Do not open this as a pull request**: with it, ToyModel is worse in ")
        assert "it keeps 8.0 KiB for the backward pass, and kept 1.0 KiB" in banner

    def test_of_what_was_not_measured_begins_with_that_and_has_no_table(self, tmp_path: Path) -> None:
        for proofs, why in ((), "run `ckpt_surgery adopt`"), ((ClassProof(UNBUILT),), "no tiny ToyModel can be made"):
            text = page(adoption(tmp_path, *proofs), "pull_request.md")
            assert f"> **Not measured**: whether this repair works was not proved: {why}" in text
            assert "## Before and after" not in text

    def test_names_what_was_repaired_and_never_run(self, tmp_path: Path) -> None:
        for uses, said in ({"ToyModel", "ToyLayer"}, False), ({"ToyLayer"}, True), (set[str](), False):
            text = page(adoption(tmp_path, ClassProof(BAD, GOOD, frozenset(uses))), "pull_request.md")
            assert ("`ToyModel` (CKPT002) was repaired and not measured: no measured model has it." in text) is said

    def test_warns_of_unsafe_repairs(self, tmp_path: Path) -> None:
        found = adoption(tmp_path, ClassProof(BAD, GOOD), unsafe=True)
        assert "Repairs were made that may break code elsewhere" in page(found, "pull_request.md")


class TestTheFolder:
    def test_has_a_diff_that_applies_and_pages_without_a_path_of_the_machine(self, tmp_path: Path) -> None:
        found = adoption(tmp_path / "toy", ClassProof(BAD, GOOD))
        out = tmp_path / "out"
        assert list(write_pages(found, out)) == NAMES
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "toy"]
        assert all(str(tmp_path) not in path.read_text() for path in out.iterdir())
        subprocess.run(["git", "apply", out / "repair.diff"], cwd=tmp_path / "toy", check=True)
        assert (tmp_path / "toy/modeling_toy.py").read_text() == found.source.patches["modeling_toy.py"].after

    def test_has_no_page_that_would_say_nothing(self, tmp_path: Path) -> None:
        healthy = adoption(tmp_path / "one", ClassProof(GOOD), shape="healthy")
        assert list(documents(healthy)) == ["model_card.md", "adopt.json"]
        unproved = adoption(tmp_path / "two")
        assert list(documents(unproved)) == ["repair.diff", "pull_request.md", "adopt.json"]

    def test_holds_everything_as_data(self, tmp_path: Path) -> None:
        found = adoption(tmp_path / "toy", ClassProof(BAD, GOOD))
        data = json.loads(page(found, "adopt.json"))
        assert (data["folder"], data["decision"], data["clean"]) == ("toy", "proved", False)
        assert {finding["path"] for finding in data["findings"]} == {"modeling_toy.py"}
        (proof,) = data["proofs"]
        assert proof["verdict"] == "repaired"
        assert Report.from_dict(proof["after"]).modes == GOOD.modes

    def test_that_fills_up_meanwhile_is_left_alone(self, tmp_path: Path) -> None:
        found = adoption(tmp_path / "toy", ClassProof(BAD, GOOD))
        (tmp_path / "out").mkdir()
        (tmp_path / "out/mine").touch()
        with pytest.raises(AdoptError, match="is not empty, and nothing in it is overwritten"):
            write_pages(found, tmp_path / "out")
        assert sorted(path.name for path in tmp_path.rglob("*") if path.parent.name != "toy") == ["mine", "out", "toy"]

    def test_may_be_there_if_it_is_empty(self, tmp_path: Path) -> None:
        found = adoption(tmp_path / "toy", ClassProof(BAD, GOOD))
        (tmp_path / "out").mkdir()
        check_output(tmp_path / "out", found.source.folder)
        write_pages(found, tmp_path / "out")
        with pytest.raises(AdoptError, match="is not empty, and nothing in it is overwritten: name a new folder"):
            check_output(tmp_path / "out", found.source.folder)

    @pytest.mark.parametrize(
        ("out", "said"),
        [
            ("toy", "lies in the model's folder: name one outside"),
            ("toy/out", "lies in the model's folder: name one outside"),
            ("file", "is a file: name a folder"),
            ("gone/out", "cannot be made: there is no folder"),
        ],
    )
    def test_that_cannot_be_written_is_noticed_before_the_work(self, tmp_path: Path, out: str, said: str) -> None:
        (tmp_path / "file").touch()
        folder = ModelFolder.read(write_shape(tmp_path / "toy", "healthy"))
        with pytest.raises(AdoptError, match=said):
            check_output(tmp_path / out, folder)
