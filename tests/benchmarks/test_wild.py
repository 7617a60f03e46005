"""The benchmark on other packages' code: its counts are right, and each kind of failure is seen."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import survey, wild
from benchmarks.wild import PAGE, failed
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.results import ApplyResult
from tests.codemods.snippets import TOY
from tests.codemods.tools import tree

MODEL = TOY.replace("from ...", "from transformers.")
PLACE = "toy/modeling_toy.py"
METADATA = "toy-1.0.dist-info/METADATA"
BEHIND = MODEL.replace("from torch", "import no_such_module\nfrom torch", 1)


@pytest.fixture(autouse=True)
def along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the parts of torch and transformers that the module needs, with nothing from the network."""
    files = {
        "torch/__init__.py": "class nn:\n    Module = object\n",
        "transformers/__init__.py": "",
        "transformers/modeling_layers.py": "GradientCheckpointingLayer = object\n",
        "transformers/modeling_utils.py": "PreTrainedModel = object\n",
    }
    folder = tree(tmp_path / "along", files)
    monkeypatch.setattr(wild, "imported_along", lambda: [folder])


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    files = {PLACE: MODEL, "toy/__init__.py": "", METADATA: "Name: toy\nRequires-Dist: transformers>=4.52\n"}
    return tree(tmp_path / "toy-1.0-py3-none-any", files)


def repaired_as(monkeypatch: pytest.MonkeyPatch, text: Callable[[str], str]) -> None:
    """Pass every file that a repair writes through `text`."""

    def worse(paths: list[Path], **options: Any) -> ApplyResult:
        result = apply(paths, **options)
        for change in result.changes:
            path = Path(change.path)
            path.write_text(text(path.read_text(encoding="utf-8")), encoding="utf-8")
        return result

    monkeypatch.setattr(wild, "apply", worse)


def repair(**changes: Any) -> dict[str, Any]:
    return {"changed": 0, "unparsed": [], "unsettled": [], "imported": 0, "broken": {}, "crash": "", **changes}


def package(**changes: Any) -> dict[str, Any]:
    plain = {"version": "1.0", "requires": "", "files": 1, "seconds": 0.5, "findings": {}, "skipped": {}}
    return {**plain, "safe": repair(), "unsafe": repair(), **changes}


def test_a_package_is_checked_repaired_and_imported_and_stays_as_it_is(toy: Path) -> None:
    measured = {**wild.measure([toy], "1.0"), "seconds": 0.5}
    made = repair(changed=1, imported=1)
    assert measured == package(requires=">=4.52", findings={"CKPT001": {"safe": 1}}, safe=made, unsafe=made)
    assert not failed(measured)
    assert (toy / PLACE).read_text(encoding="utf-8") == MODEL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lambda text: text + "def broken(:\n", repair(changed=1, unparsed=[PLACE])),
        (
            lambda text: text.replace("(GradientCheckpointingLayer)", "(nn.Module)"),
            repair(changed=1, unsettled=[PLACE]),
        ),
    ],
    ids=["does not compile", "changes again"],
)
def test_a_bad_repair_is_seen(
    toy: Path, monkeypatch: pytest.MonkeyPatch, text: Callable[[str], str], expected: dict[str, Any]
) -> None:
    repaired_as(monkeypatch, text)
    measured = wild.measure([toy], "1.0", imports=False)
    assert measured["safe"] == expected
    assert failed(measured)


def test_a_repair_that_breaks_the_import_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repaired_as(monkeypatch, lambda text: text.replace("modeling_layers", "no_such_module"))
    measured = wild.measure([toy], "1.0")
    safe = measured["safe"]
    assert (safe["imported"], list(safe["broken"])) == (0, ["toy.modeling_toy"])
    assert safe["broken"]["toy.modeling_toy"].startswith("ModuleNotFoundError: No module named 'transformers.no_")
    assert failed(measured)


def test_a_repair_that_crashes_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*arguments: object, **options: object) -> ApplyResult:
        raise KeyError("layer")

    monkeypatch.setattr(wild, "apply", crash)
    measured = wild.measure([toy], "1.0")
    assert measured["safe"] == measured["unsafe"] == repair(crash="KeyError: 'layer'")
    assert failed(measured)


def test_a_module_that_could_not_be_imported_before_is_no_failure(tmp_path: Path) -> None:
    measured = wild.measure([tree(tmp_path / "toy", {PLACE: BEHIND})], "1.0")
    assert measured["skipped"] == {"ModuleNotFoundError: No module named 'no_such_module'": 1}
    assert measured["safe"] == repair(changed=1)
    assert measured["requires"] == ""


def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the figures of two packages in a folder."""
    monkeypatch.setattr(survey, "COVERAGE", tmp_path)
    packages = {"peft": package(version="0.1"), "timm": package(version="0.1")}
    PAGE.write({"versions": {"torch": "1"}, "packages": packages, "repositories": {}})


def test_a_run_of_one_package_replaces_its_row_and_fails_on_a_bad_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path, monkeypatch)
    new = package(safe=repair(crash="KeyError"))
    monkeypatch.setattr(wild, "measure", lambda *arguments, **options: new)
    monkeypatch.setattr(wild, "fetch_wheel", Path)
    assert wild.main([str(tmp_path / "rows.jsonl"), "timm", "--page"]) == 1
    assert PAGE.read()["packages"] == {"peft": package(version="0.1"), "timm": new}


def test_checkouts_are_measured_by_name_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, monkeypatch)
    checkout = tree(tmp_path / "owner+toy", {PLACE: MODEL})
    who = ("-c", "user.name=A", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "toy")):
        subprocess.run(["git", "-C", str(checkout), *words], check=True)
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert wild.main([str(tmp_path / "rows.jsonl"), "--page", "--repositories", str(tmp_path)]) == 0
    ((name, found),) = PAGE.read()["repositories"].items()
    assert (name, head.stdout[:10]) == ("owner/toy", found["version"])
    assert (found["findings"], found["safe"]["changed"]) == ({"CKPT001": {"safe": 1}}, 1)
    assert f"| owner/toy | {found['version']} | 1 | 1 | 0 | 0 | 0 |" in PAGE.text()


def test_the_page_has_every_pinned_package_and_no_repair_failed() -> None:
    wheels = wild.wheels_by_package()
    packages = PAGE.read()["packages"]
    assert {name: package["version"] for name, package in packages.items()} == {
        name: parts[0].split("-")[1] for name, parts in wheels.items()
    }
    assert [name for name, package in packages.items() if failed(package)] == []
