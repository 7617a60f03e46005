"""The environment of `make gpu`: made with Python alone, from what is there and what is missing or too old."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.gpu import environment
from benchmarks.gpu.environment import NEEDED, OLDEST, is_missing


def test_it_needs_nothing_but_python() -> None:
    source = Path(environment.__file__).read_text(encoding="utf-8")
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= {*sys.stdlib_module_names, "__future__"}


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("torch", "", True),
        ("torch", "2.9.1+cu128", True),
        ("torch", "2.13.0+cu130", False),
        ("torch", "2.13.0a0+git1234", False),
        ("torch", "3.0", False),
        ("transformers", "4.57.6", True),
        ("transformers", "5.23.0", False),
        ("rich", "", True),
        ("rich", "13.7", False),
    ],
)
def test_what_is_missing_or_too_old_is_installed(name: str, version: str, expected: bool) -> None:
    assert is_missing(name, version) is expected


def test_what_is_asked_for_is_new_enough() -> None:
    for name, oldest in OLDEST.items():
        asked = NEEDED[name].partition("==")[2]
        assert not is_missing(name, asked), (name, oldest)


def test_an_interpreter_that_has_everything_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "missing_in", lambda python: [])
    monkeypatch.setattr("venv.create", lambda *_, **__: pytest.fail("nothing is to be made"))
    assert environment.main() == 0
    assert capsys.readouterr().out.strip() == sys.executable


def test_what_pip_cannot_install_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "FOLDER", tmp_path / "environment")
    monkeypatch.setattr(environment, "missing_in", lambda python: ["torch"])
    made: list[Path] = []

    def create(folder: Path, **_: object) -> None:
        made.append(folder)
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to("/bin/false")

    monkeypatch.setattr("venv.create", create)
    assert environment.main() == 2
    assert made == [tmp_path / "environment"]
    assert "gpu: pip could not install torch" in capfd.readouterr().err


def test_this_interpreter_is_asked_what_it_has() -> None:
    assert set(environment.missing_in(sys.executable)) <= set(NEEDED)
