"""The baseline: what it leaves out, how findings are recognised, and what is said of those that are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.errors import OptionError
from ckpt_surgery.static.baseline import without_known
from ckpt_surgery.static.results import CheckResult, Problem

CODES = ("CKPT001", "CKPT003")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "baseline.json"


def finding(
    line: int = 3, message: str = "on line 9", path: str = "src/m.py", code: str = "CKPT003", name: str = "Block"
) -> Finding:
    return Finding(code, path, line, 5, name, message, Applicability.SAFE)


def left(
    file: Path, *findings: Finding, places: tuple[str, ...] = (), codes: tuple[str, ...] = CODES, **options: bool
) -> tuple[list[Finding], str]:
    """Return the reported findings and the message about the baseline."""
    result = without_known(CheckResult(findings, (), 1, 0, 0.5), file, places=places, codes=codes, **options)
    return [*result.findings], " ".join(note.text for note in result.notes)


def test_a_new_baseline_takes_all_findings(file: Path) -> None:
    said = "written with 2 findings: from the next run on, only others are reported"
    assert left(file, finding(), finding(4)) == ([], said)
    assert left(file, finding(), finding(4)) == ([], "2 findings of this baseline not shown")
    (entry,) = json.loads(file.read_text())["findings"]
    assert entry == {"path": "src/m.py", "code": "CKPT003", "class_name": "Block", "message": "on line #", "count": 2}


def test_a_finding_is_known_by_all_but_lines_and_numbers(file: Path, tmp_path: Path) -> None:
    left(file, finding())
    assert left(file, finding(70, "on line 76", str(tmp_path / "src/m.py")))[0] == []
    others = [finding(message="on page 9"), finding(path="src/n.py"), finding(code="CKPT001"), finding(name="Layer")]
    assert left(file, *others) == (others, "1 of its findings gone: rewrite it with --update-baseline")


def test_one_more_of_the_same_kind_is_reported(file: Path) -> None:
    left(file, finding())
    assert left(file, finding(), finding(8))[0] == [finding(8)]


def test_paths_are_relative_to_the_baseline(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ci").mkdir()
    left(tmp_path / "ci/b.json", finding())
    monkeypatch.chdir(tmp_path / "ci")
    assert left(Path("b.json"), finding(path="../src/m.py"), places=("..",)) == (
        [],
        "1 finding of this baseline not shown",
    )
    assert left(Path("b.json"), places=("..",))[1].startswith("1 of its findings gone")
    assert left(Path("b.json"), places=(str(tmp_path.parent),))[1].startswith("1 of its findings gone")


def test_what_was_not_checked_is_not_gone_and_stays(file: Path) -> None:
    known = [finding(), finding(code="CKPT001"), finding(path="src/n.py"), finding(path="src/unread.py")]
    left(file, *known)
    assert left(file, places=("docs",)) == ([], "")
    assert left(file, codes=("CKPT001",))[1].startswith("1 of its findings gone")
    unread = CheckResult((), (Problem("src/unread.py", "does not parse"),), 1, 0, 0.5)
    result = without_known(unread, file, places=("src",), codes=CODES)
    assert [note.text.partition(":")[0] for note in result.notes] == ["3 of its findings gone"]
    left(file, finding(message="other"), places=("src/m.py",), update=True)
    entries = json.loads(file.read_text())["findings"]
    assert [(entry["path"], entry["message"]) for entry in entries] == [
        ("src/m.py", "other"),
        ("src/n.py", "on line #"),
        ("src/unread.py", "on line #"),
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2, "findings": []}', '{"version": 1, "findings": [{}]}']
)
def test_another_file_is_refused_in_one_sentence(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(OptionError, match=r"is not a baseline: name another file"):
        left(file, finding())
    assert file.read_text() == text


def test_a_baseline_that_cannot_be_reached_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        left(tmp_path)
    with pytest.raises(OptionError, match="cannot be written"):
        left(tmp_path / "none" / "b.json")
