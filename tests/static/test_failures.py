"""If this package fails at a file, everything else is still checked, and nothing is half repaired."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_surgery import apply, check
from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.finding import Finding, RuleContext
from ckpt_surgery.codemods.repair import DropImports, SourceRepair
from ckpt_surgery.static import apply as apply_module
from ckpt_surgery.static import reading, snapshot
from ckpt_surgery.static.results import Problem
from ckpt_surgery.static.text_edits import edits_of
from tests.codemods.snippets import BY_KEYWORD, INLINE, PLAIN
from tests.codemods.tools import FOO, texts, tree

ODD = "models/odd/modeling_odd.py"
KEYWORD = "models/k/modeling_k.py"
FILES = {FOO: PLAIN, KEYWORD: BY_KEYWORD, ODD: INLINE + "\n# odd\n"}


def fail(error: Exception) -> Callable[..., None]:
    def failing(*_: object, **__: object) -> None:
        raise error

    return failing


@pytest.fixture
def odd_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(text: str) -> object:
        return fail(KeyError("odd"))() if "# odd" in text else extract(text)

    monkeypatch.setattr(reading, "extract", read)


def plant(monkeypatch: pytest.MonkeyPatch, code: str, error: Exception, where: str = "") -> None:
    """Make a rule fail at the file with this ending, or at once."""

    def rule(find: Callable[[RuleContext], Iterator[Finding]]) -> Callable[[RuleContext], Iterator[Finding]]:
        def failing(context: RuleContext) -> Iterator[Finding]:
            if not where:
                raise error
            for ref in context.tree.names.checked_classes():
                look_at_all(context)
                assert ref.path
            yield from find(context)

        def look_at_all(context: RuleContext) -> None:
            for path in context.tree.checked:
                if path.endswith(where):
                    raise error

        return failing

    rules = [replace(entry, find=rule(entry.find)) if entry.code == code else entry for entry in RULES]
    monkeypatch.setattr(snapshot, "RULES", tuple(rules))


@pytest.mark.usefixtures("odd_is_not_read")
def test_a_file_whose_reading_fails_is_named_and_the_others_are_checked(tmp_path: Path) -> None:
    root = tree(tmp_path, FILES)
    for _ in range(2):
        result = check([root], jobs=1)
        assert [finding.code for finding in result.findings] == ["CKPT001", "CKPT003"]
        (problem,) = result.problems
        assert problem.path == str(root / ODD)
        assert "KeyError: 'odd'" in problem.message
    apply([root], jobs=1)
    assert [name for name, text in texts(root).items() if text != FILES[name]] == [FOO, KEYWORD]


@pytest.mark.parametrize(
    "error",
    [
        KeyError("odd"),
        RecursionError("too deep"),
    ],
)
def test_a_rule_that_fails_at_a_file_is_named_with_it_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    root = tree(tmp_path, {**FILES, "models/l/modeling_l.py": BY_KEYWORD})
    plant(monkeypatch, "CKPT003", error, ODD)
    result = check([root], jobs=1)
    found = [(finding.code, finding.family) for finding in result.findings]
    assert found == [("CKPT001", "foo"), ("CKPT003", "k"), ("CKPT003", "l"), ("CKPT002", "odd")]
    (problem,) = result.problems
    assert problem.path == str(root / ODD)
    assert problem.message.startswith(f"CKPT003 failed ({type(error).__name__}")


def test_a_rule_that_fails_at_no_file_is_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, FILES)
    with monkeypatch.context() as patch:
        plant(patch, "CKPT003", KeyError("odd"))
        result = check([root], jobs=1)
    assert [finding.code for finding in result.findings] == ["CKPT001", "CKPT002"]
    assert [problem.path for problem in result.problems] == ["CKPT003"]
    assert len(check([root], jobs=1).findings) > 2, "what a failing rule left out is not kept"


def test_apply_leaves_out_a_rule_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, FILES)
    plant(monkeypatch, "CKPT003", KeyError("odd"), ODD)
    result = apply([root], jobs=1)
    assert [problem.path for problem in result.problems] == [str(root / ODD)]
    assert {change.codes for change in result.changes} == {("CKPT001",), ("CKPT002",)}
    assert texts(root)[KEYWORD] == BY_KEYWORD


def test_a_repair_that_fails_leaves_its_file_and_makes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, FILES)
    real = reading.ParsedFile.rewritten_parts

    def failing(file: reading.ParsedFile, *rest: object) -> object:
        return fail(KeyError("odd"))() if "# odd" in file.source.text else real(file, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(reading.ParsedFile, "rewritten_parts", failing)
    assert [len(made) > 0 for made in edits_of(check([root], jobs=1).findings).values()] == [True, True, False, False]
    result = apply([root], jobs=1)
    assert [problem.path for problem in result.problems] == [str(root / ODD)]
    assert [change.path for change in result.changes] == [str(root / FOO), str(root / KEYWORD)]
    assert texts(root)[ODD] == FILES[ODD]


@pytest.mark.parametrize("step", ["unused_imports", "diverged_copies"])
def test_the_last_step_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    monkeypatch.setattr(apply_module, step, fail(KeyError("odd")))
    result = apply([tree(tmp_path, PLAIN)], jobs=1)
    assert len(result.problems) == 1
    assert len(result.changes) == 1


def test_what_a_worker_cannot_send_or_a_cache_keep_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, {f"models/m{n}/modeling_m{n}.py": PLAIN for n in range(30)})
    monkeypatch.setattr(Problem, "__reduce__", fail(pickle.PicklingError()), raising=False)
    (root / "models/m7/modeling_m7.py").write_text("def checkpointing(", encoding="utf-8")
    result = check([root], jobs=2)
    assert (len(result.findings), len(result.problems)) == (29, 1)
    monkeypatch.setattr(pickle, "dump", fail(RecursionError()))
    assert len(check([tree(tmp_path / "1", PLAIN)], jobs=1).findings) == 1


def test_a_repair_of_the_last_step_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, "from functools import partial\n\n" + INLINE.replace("layer.__call__", "partial(layer)"))
    real = reading.ParsedFile.rewritten_parts

    def failing(file: reading.ParsedFile, repairs: Collection[SourceRepair]) -> object:
        return fail(KeyError("odd"))() if isinstance(next(iter(repairs)), DropImports) else real(file, repairs)

    monkeypatch.setattr(reading.ParsedFile, "rewritten_parts", failing)
    result = apply([root], jobs=1)
    assert (len(result.problems), len(result.changes)) == (1, 1)
