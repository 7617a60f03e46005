"""The times of the commands: each figure has its target, rounds are kept together, and `--help` imports little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speed
from benchmarks.figures import Figure, Target, lacking
from benchmarks.stopwatch import CommandFailed, Run
from tests.codemods.snippets import PLAIN
from tests.codemods.tools import FOO, tree


def ran(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Run]) -> None:
    monkeypatch.setattr(speed, "measure", run)


def test_check_is_timed_cold_and_warm_beside_ast_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "fetch", lambda version: tree(tmp_path / "own", {FOO: PLAIN}))
    runs = iter([Run(9.0, 700 * 10**6), Run(0.5)])
    ran(monkeypatch, lambda *_, **__: next(runs))
    measured = {figure.name: figure for figure in speed.check(tmp_path)}
    assert measured["check, cold"].values == (9.0,)
    assert measured["check, warm"].verdict == "ok"
    assert measured["check, cold / ast.parse"].verdict == "missed"
    assert measured["check, cold: largest process"].verdict == "missed"


def test_a_help_that_imports_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, lambda *_, **__: Run(0.1, errors="import time:  9 | 9 | torch\n"))
    with pytest.raises(CommandFailed, match="imports torch and must do without"):
        list(speed.help_(tmp_path))
    ran(monkeypatch, lambda *_, **__: Run(0.1, errors="import time:  9 | 9 | torchless\n"))
    assert [figure.verdict for figure in speed.help_(tmp_path)] == ["ok"]


def test_the_real_help_is_timed(tmp_path: Path) -> None:
    (figure,) = speed.help_(tmp_path)
    assert figure.values[0] > 0


def test_explain_is_asked_for_each_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Any]] = []

    def run(words: list[Any], **_: Any) -> Run:
        asked.append(words)
        return Run(16.0, 10**9 + 1)

    ran(monkeypatch, run)
    verdicts = {figure.name: figure.verdict for figure in speed.explain(tmp_path)}
    assert [words[words.index("--tokens") + 1] for words in asked] == ["8192", "8192", "4096"]
    assert verdicts["explain Llama 8B"] == verdicts["explain Llama 8B: memory"] == "missed"
    assert verdicts["explain Llama 405B"] == "ok"


@pytest.mark.parametrize(("limit", "code"), [(2.0, 0), (0.5, 1)])
def test_a_miss_sets_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: float, code: int
) -> None:
    def one(scratch: Path) -> Iterator[Figure]:
        yield Figure("own", (1.0,), "s", Target(limit))

    monkeypatch.setitem(speed.COMMANDS, "help", one)
    assert speed.main(["help", "--out", str(tmp_path / "speed.json")]) == code
    assert ("missed" in capsys.readouterr().out) == bool(code)
    with pytest.raises(SystemExit):
        speed.main(["chekc"])


def test_the_first_package_that_is_not_installed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert not lacking("speed", "rich", "json")
    assert lacking("speed", "rich", "no_such_package", "nor_this_one")
    assert capsys.readouterr().err == "speed: No module named 'no_such_package'.\n"
