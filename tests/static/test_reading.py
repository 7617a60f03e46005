"""Facts of files, cached or extracted, in the order of the files; a file that does not parse is a problem."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from ckpt_surgery import check
from ckpt_surgery.static import reading
from ckpt_surgery.static.discover import SourceFile, read_source, read_sources
from ckpt_surgery.static.reading import FileParser, ParsedFile, gc_paused, parse_file
from ckpt_surgery.static.results import Problem
from tests.codemods.snippets import INLINE, PLAIN
from tests.codemods.tools import FOO, tree


def source(root: Path, text: str = PLAIN) -> SourceFile:
    source_file = read_source(tree(root, text) / FOO)
    assert isinstance(source_file, SourceFile)
    return source_file


def test_the_second_time_facts_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = parse_file(source(tmp_path), use_cache=True)
    monkeypatch.setattr(reading, "extract", None)
    assert parse_file(source(tmp_path), use_cache=True) == first
    assert isinstance(first, ParsedFile)


def test_another_text_has_other_facts(tmp_path: Path) -> None:
    one = parse_file(source(tmp_path), use_cache=True)
    other = parse_file(source(tmp_path, INLINE), use_cache=True)
    assert isinstance(one, ParsedFile)
    assert isinstance(other, ParsedFile)
    assert one.facts != other.facts


def test_an_entry_serves_a_file_of_the_same_text_under_its_own_path(tmp_path: Path) -> None:
    text = "# ckpt: ignore[CKPT999] no such rule\nx = 1\n"
    for folder in ("a", "b"):
        (problem,) = check(tree(tmp_path / folder, text), jobs=1).problems
        assert problem.path == str(tmp_path / folder / FOO)


@pytest.mark.parametrize(
    ("text", "said"),
    [("def broken(:\n", "line 1 does not parse"), ("x = 1\n  y = 2\n", "line 2 does not parse"), ("(" * 5000, "")],
    ids=["syntax", "indentation", "too deep"],
)
def test_a_text_that_does_not_parse_is_one_problem(tmp_path: Path, text: str, said: str) -> None:
    problem = parse_file(source(tmp_path, text), use_cache=True)
    assert isinstance(problem, Problem)
    assert said in problem.message
    assert "\n" not in problem.message


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_files(tmp_path: Path, jobs: int) -> None:
    files = {f"models/m{n}/modeling_m{n}.py": f"class C{n}:\n    pass\n" if n % 7 else "def (" for n in range(40)}
    root = tree(tmp_path, files)
    sources, problems = read_sources([root / name for name in files])
    assert problems == []
    reported: list[tuple[str, int, int]] = []
    parser = FileParser(jobs, lambda step, done, total: reported.append((step, done, total)))
    results = parser.parse(sources, use_cache=False)
    paths = [result.source.path if isinstance(result, ParsedFile) else result.path for result in results]
    assert paths == [str(root / name) for name in files]
    assert sum(isinstance(result, Problem) for result in results) == 6
    assert reported[-1] == ("reading", 40, 40)


def test_collecting_is_switched_on_again_after_an_error() -> None:
    def fail() -> None:
        with gc_paused():
            assert not gc.isenabled()
            raise KeyError

    assert gc.isenabled()
    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_what_a_caller_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_paused():
            pass
        assert gc.get_freeze_count() > frozen / 2  # some of what is frozen may be freed
    finally:
        gc.unfreeze()
