"""The benchmark on other packages' code: what it counts is what is there, and each kind of failure is seen."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import wild, wild_report
from benchmarks.import_modules import failures
from benchmarks.wild_report import PAGE, Package, Repair, Wild, page, read_wild, write_wild
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.results import ApplyResult
from tests.benchmarks.test_release_table import rows
from tests.codemods.snippets import TOY
from tests.codemods.tools import tree

MODEL = TOY.replace("from ...", "from transformers.")
PLACE = "toy/modeling_toy.py"
METADATA = "toy-1.0.dist-info/METADATA"
BEHIND = MODEL.replace("from torch", "import no_such_module\nfrom torch", 1)


@pytest.fixture(autouse=True)
def along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of torch and transformers as the module needs, and nothing from the network."""
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
    """An unpacked wheel with one fault in one file."""
    files = {PLACE: MODEL, "toy/__init__.py": "", METADATA: "Name: toy\nRequires-Dist: transformers>=4.52\n"}
    return tree(tmp_path / "toy-1.0-py3-none-any", files)


def repaired_as(monkeypatch: pytest.MonkeyPatch, text: Callable[[str], str]) -> None:
    """Let every repair end with what `text` makes of the file that it should write."""

    def worse(paths: list[Path], **options: Any) -> ApplyResult:
        result = apply(paths, **options)
        for change in result.changes:
            path = Path(change.path)
            path.write_text(text(path.read_text(encoding="utf-8")), encoding="utf-8")
        return result

    monkeypatch.setattr(wild, "apply", worse)


def test_a_package_is_checked_repaired_and_imported_and_stays_as_it_is(toy: Path) -> None:
    package = wild.measure([toy], "1.0", jobs=1)
    assert replace(package, seconds=0.0) == Package(
        version="1.0",
        requires=">=4.52",
        files=1,
        findings={"CKPT001": {"safe": 1}},
        safe=Repair(changed=1, imported=1),
        unsafe=Repair(changed=1, imported=1),
    )
    assert not package.failed
    assert (toy / PLACE).read_text(encoding="utf-8") == MODEL


def test_a_repair_that_does_not_compile_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repaired_as(monkeypatch, lambda text: text + "def broken(:\n")
    package = wild.measure([toy], "1.0", jobs=1, imports=False)
    assert package.safe == Repair(changed=1, unparsed=(PLACE,))
    assert package.failed


def test_a_repair_that_a_second_run_changes_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repaired_as(
        monkeypatch,
        lambda text: text.replace("class ToyLayer(GradientCheckpointingLayer)", "class ToyLayer(nn.Module)"),
    )
    package = wild.measure([toy], "1.0", jobs=1, imports=False)
    assert package.safe == Repair(changed=1, unsettled=(PLACE,))
    assert package.failed


def test_a_repair_that_breaks_the_import_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repaired_as(monkeypatch, lambda text: text.replace("modeling_layers", "no_such_module"))
    package = wild.measure([toy], "1.0", jobs=1)
    assert package.safe.imported == 0
    assert list(package.safe.broken) == ["toy.modeling_toy"]
    assert package.safe.broken["toy.modeling_toy"].startswith("ModuleNotFoundError: No module named 'transformers.no_")
    assert package.failed


def test_a_repair_that_crashes_is_seen(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*arguments: object, **options: object) -> ApplyResult:
        raise KeyError("layer")

    monkeypatch.setattr(wild, "apply", crash)
    package = wild.measure([toy], "1.0", jobs=1)
    assert package.safe == package.unsafe == Repair(crash="KeyError: 'layer'")
    assert package.failed


def test_a_module_that_could_not_be_imported_before_is_no_failure(tmp_path: Path) -> None:
    package = wild.measure([tree(tmp_path / "toy", {PLACE: BEHIND})], "1.0", jobs=1)
    assert package.skipped == {"ModuleNotFoundError: No module named 'no_such_module'": 1}
    assert package.safe == Repair(changed=1)
    assert package.requires == ""


def test_distributions_of_one_package_are_measured_as_one(toy: Path, tmp_path: Path) -> None:
    other = tree(tmp_path / "other", {"toy/modeling_other.py": MODEL.replace("Toy", "Other")})
    assert wild.measure([toy, other], "1.0", jobs=1, imports=False).findings == {"CKPT001": {"safe": 2}}
    wheels = wild.wheels_by_package()
    assert [name for name in wheels if name in {*wild.PART_OF, *wild.IMPORTED_ALONG}] == []
    assert [wheel.split("-")[0] for wheel in wheels["flash_linear_attention"]] == [
        "flash_linear_attention",
        "fla_core",
    ]


def test_what_extras_ask_for_is_marked_and_counts_only_alone(tmp_path: Path) -> None:
    extra = 'Requires-Dist: transformers[torch]==4.49.0 ; extra == "old"\n'
    assert wild._required_transformers(tree(tmp_path / "extra", {METADATA: extra})) == "==4.49.0 (an extra)"
    both = f"{extra}Requires-Dist: transformers (~=4.57)\nRequires-Dist: transformers-stream-generator\n"
    assert wild._required_transformers(tree(tmp_path / "both", {METADATA: both})) == "~=4.57"


def test_a_module_that_ends_the_process_is_named_as_one_that_cannot_be_imported(tmp_path: Path) -> None:
    tree(tmp_path, {"ends.py": "import sys\nsys.exit('enough')\n", "fine.py": "print('noise')\n"})
    assert wild._import_failures(tmp_path, ["fine", "ends"]) == {"ends": "SystemExit: enough", "fine": ""}
    tree(tmp_path, {"kills.py": "import os\nos._exit(7)\n"})
    assert wild._import_failures(tmp_path, ["kills"]) == {"kills": "the process ended with 7"}


def test_the_reason_of_a_failed_import_is_one_line() -> None:
    assert failures(["json", "no_such_module"]) == {
        "json": "",
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    }


def test_a_package_without_a_pin_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert wild.main(["requests"]) == 2
    assert capsys.readouterr().err.startswith("wild: requests is none of adapters, ")


def test_a_run_of_one_package_replaces_its_rows_and_ends_with_1_where_a_repair_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = tmp_path / "wild.json"
    old = {name: Package("0.1", files=files) for files, name in enumerate(("peft", "timm"))}
    write_wild(Wild({"torch": "1"}, old), figures)
    for module in (wild, wild_report):
        monkeypatch.setattr(module, "FIGURES", figures)
    monkeypatch.setattr(wild, "PAGE", tmp_path / "wild.md")
    monkeypatch.setattr(wild, "fetch_wheel", Path)
    new = Package("0.2", safe=Repair(crash="KeyError"))
    monkeypatch.setattr(wild, "measure", lambda *arguments, **options: new)
    assert wild.main(["timm"]) == 1
    assert read_wild(figures).packages == {"peft": old["peft"], "timm": new}
    assert (tmp_path / "wild.md").read_text(encoding="utf-8") == page(read_wild(figures))


def test_checkouts_are_measured_by_name_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tree(tmp_path / "owner+toy", {PLACE: MODEL})
    who = ("-c", "user.name=A", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "toy")):
        subprocess.run(["git", "-C", str(checkout), *words], check=True)
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    figures = tmp_path / "wild.json"
    write_wild(Wild({"torch": "1"}, {"peft": Package("0.1")}), figures)
    for module in (wild, wild_report):
        monkeypatch.setattr(module, "FIGURES", figures)
    monkeypatch.setattr(wild, "PAGE", tmp_path / "wild.md")
    assert wild.main(["--repositories", str(tmp_path)]) == 0
    measured = read_wild(figures)
    assert measured.packages == {"peft": Package("0.1")}
    (name,) = measured.repositories
    found = measured.repositories[name]
    assert (name, head.stdout[:10]) == ("owner/toy", found.version)
    assert (found.findings, found.safe.changed) == ({"CKPT001": {"safe": 1}}, 1)
    assert f"| owner/toy | {found.version} | 1 | 1 | 0 | 0 | 0 |" in page(measured)


def test_a_folder_without_checkouts_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert wild.main(["--repositories", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"wild: there is no git checkout in {tmp_path}.\n"


def test_the_page_is_made_from_its_figures() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_wild())


def test_the_page_has_every_pinned_package_and_no_repair_failed() -> None:
    wheels = wild.wheels_by_package()
    packages = read_wild().packages
    assert {name: package.version for name, package in packages.items()} == {
        name: parts[0].split("-")[1] for name, parts in wheels.items()
    }
    assert [name for name, package in packages.items() if package.failed] == []


def test_the_page_says_what_was_found_what_changed_and_what_broke() -> None:
    broken = {"toy.a": "ImportError: no b", "toy.c": "ImportError: no b"}
    unsafe = Repair(changed=4, unparsed=("toy/d.py",), unsettled=("toy/e.py", "toy/f.py"), imported=1, broken=broken)
    toy = Package(
        version="1.0",
        requires="==4.48.0",
        files=1200,
        seconds=2.5,
        findings={"CKPT001": {"safe": 2}, "CKPT009": {"info": 1, "safe": 1}},
        safe=Repair(changed=2, imported=2),
        unsafe=unsafe,
        skipped={"ModuleNotFoundError: No module named 'g'": 3},
    )
    text = page(Wild({"torch": "2.13.0"}, {"toy": toy, "zoo": Package("2.0", safe=Repair(crash="KeyError: h"))}))
    lines = text.splitlines()
    assert "| toy | 1.0 | ==4.48.0 | 1,200 | 3 | 0 | 1 | 0 | 2.5 |" in lines
    assert "| toy | CKPT009 | 1 | 0 | 1 | 0 |" in lines
    assert "| toy | `apply` | 2 | 0 | 0 | 2 | 0 |" in lines
    assert "| toy | `apply --unsafe` | 4 | 1 | 2 | 1 | 2 |" in lines
    assert "| toy | `apply --unsafe` | `toy.a` and 1 more | ImportError: no b |" in lines
    assert "| toy | `apply --unsafe` | does not compile | `toy/d.py` |" in lines
    assert "| zoo | `apply` | crashed | KeyError: h |" in lines
    assert rows(text)["toy"] == ["3", "ModuleNotFoundError: No module named 'g'"]


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    repair = Repair(1, ("a.py",), ("b.py",), 2, {"c": "why"}, "KeyError")
    figures = Wild(
        {"torch": "2"}, {"toy": Package("1", "any", 3, 0.5, {"CKPT001": {"safe": 1}}, repair, repair, {"d": 1})}
    )
    write_wild(figures, tmp_path / "wild.json")
    assert read_wild(tmp_path / "wild.json") == figures
