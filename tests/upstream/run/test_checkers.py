"""Which of upstream's tools a checkout has."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.upstream.run.checkers import Generation, UpstreamTools, find_tools
from tests.upstream.toy_checkout import write


@pytest.mark.parametrize(
    ("files", "generation"),
    [
        (["checkers.py", "check_copies.py", "check_modular_conversion.py"], Generation.RUNNER),
        (["check_copies.py", "check_modular_conversion.py"], Generation.SCRIPTS),
        (["check_copies.py"], Generation.NONE),
        ([], Generation.NONE),
    ],
    ids=["the runner", "both scripts", "no converter", "nothing"],
)
def test_the_files_tell_the_generation(tmp_path: Path, files: list[str], generation: Generation) -> None:
    for name in files:
        write(tmp_path / "utils" / name, "")
    assert find_tools(tmp_path) == UpstreamTools(generation)
    assert find_tools(tmp_path).has_converter == (generation is not Generation.NONE)


@pytest.mark.parametrize(
    ("line", "version"),
    [('"ruff==0.14.10",', "0.14.10"), ("'ruff==1.0rc1'", "1.0rc1"), ('"ruff>=0.9"', None), ('"my-ruff==2"', None)],
)
def test_the_pinned_ruff_is_read_from_setup_py(tmp_path: Path, line: str, version: str | None) -> None:
    write(tmp_path / "setup.py", f"_deps = [\n    {line}\n]\n")
    assert find_tools(tmp_path).ruff == version
