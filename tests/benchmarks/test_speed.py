"""The times of the commands: each figure has its target, which can be missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speed
from benchmarks.figures import Figure, Target
from benchmarks.stopwatch import Run
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

    monkeypatch.setattr(speed, "check", one)
    monkeypatch.setattr(speed, "explain", lambda scratch: iter(()))
    assert speed.main(["--out", str(tmp_path / "speed.json")]) == code
    assert ("missed" in capsys.readouterr().out) == bool(code)
