"""Facts of files, cached or extracted, in the order of the files; a file that does not parse is a problem."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from ckpt_surgery.static.discover import read_sources
from ckpt_surgery.static.reading import FileParser, ParsedFile, gc_paused
from ckpt_surgery.static.results import Problem
from tests.codemods.tools import tree


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
