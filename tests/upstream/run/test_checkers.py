"""Upstream's converter, fixers and checkers: which a checkout has, what they change, and what a failure means.

The checkouts are toys with our own checkers, in both shapes that upstream's have had.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import CheckerResult, CheckStatus, CommandRun
from ckpt_surgery.upstream.run.checkers import UpstreamTools
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.parallel import TreePair
from tests.upstream.toy_checkout import RUFF, commit, git, make, write

MODELS = "src/transformers/models"
ASH, BIRCH, CEDAR = (f"{MODELS}/{name}/modeling_{name}.py" for name in ("ash", "birch", "cedar"))
MODULAR = f"{MODELS}/cedar/modular_cedar.py"
IMPORT = "from ...modeling_layers import GradientCheckpointingLayer\n"
CONVERTED = {
    "checkers": "utils/checkers.py modular_conversion --fix",
    "scripts": "utils/check_modular_conversion.py --fix_and_overwrite",
}
NAMES = ["copies", "docstrings", "inits", "modular_conversion", "repo", "ruff_check", "ruff_format"]
FORMATTED = {"copies", "modular_conversion", "ruff_check", "ruff_format"}

MAKEFILE = "check_dirs := examples src utils\n\nquality:\n\truff check $(check_dirs) setup.py conftest.py\n"
FEWER = {"generation": "scripts", "ruff": "another"}
"""Only those checkers are run that do not depend on the version of ruff."""

PYTHON = PythonInterpreter(Path("python"))

both = pytest.mark.parametrize("generation", ["checkers", "scripts"])


@dataclass(frozen=True)
class Toy:
    """A toy checkout on a branch, and a worktree of it that stays at the base."""

    tree: Path
    base: Path

    @property
    def tools(self) -> UpstreamTools:
        return UpstreamTools.of(self.tree, self.python)

    @property
    def python(self) -> PythonInterpreter:
        return PythonInterpreter(self.tree / ".venv/bin/python")

    def fix(self) -> tuple[CommandRun, ...]:
        return self.tools.fix(self.tree)

    def drift(self, *modular: str) -> tuple[str, ...]:
        return tuple(self.tools.drift(self.tree, modular))

    def check(self) -> dict[str, CheckerResult]:
        return {outcome.name: outcome for outcome in self.outcomes()}

    def outcomes(self, **options: Any) -> list[CheckerResult]:
        tasks = self.tools.checker_tasks(self.tree, **{"on_base": {}, **options})
        return [task(TreePair(self.base, self.tree)) for task in tasks]

    def text(self, name: str) -> str:
        return (self.tree / name).read_text(encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.text(name)
        assert old in text
        write(self.tree / name, text.replace(old, new))

    def repair(self) -> None:
        """Repair the block of ash as the codemods do."""
        self.edit(ASH, "class AshLayer(nn.Module)", "class AshLayer(GradientCheckpointingLayer)")
        self.edit(ASH, "from ...modeling_utils", f"{IMPORT}from ...modeling_utils")

    def changed(self) -> list[str]:
        return [line[3:] for line in git(self.tree, "status", "--porcelain").splitlines()]


class Maker:
    """A maker of toys in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, **options: Any) -> Toy:
        """Make a toy with `toy_checkout.make`; `scripts` adds or replaces files."""
        scripts: dict[str, str] = options.pop("scripts", {})
        tree = make(self.folder / "transformers", site=False, **options)
        if scripts:
            for name, text in scripts.items():
                write(tree / name, text)
            commit(tree, "Other scripts")
        base = self.folder / "base"
        git(tree, "worktree", "add", "--quiet", "--detach", str(base))
        git(tree, "switch", "--quiet", "--create", "series")
        return Toy(tree, base)


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no ruff but the toy's
    return Maker(tmp_path)


# which tools


@pytest.mark.parametrize(
    ("files", "runner", "has_converter"),
    [
        (["checkers.py", "check_copies.py", "check_modular_conversion.py"], True, True),
        (["check_copies.py", "check_modular_conversion.py"], False, True),
        (["check_copies.py"], False, False),
    ],
    ids=["the runner", "both scripts", "no converter"],
)
def test_the_files_tell_the_tools(tmp_path: Path, files: list[str], runner: bool, has_converter: bool) -> None:
    for name in files:
        write(tmp_path / "utils" / name, "")
    assert UpstreamTools.of(tmp_path, PYTHON) == UpstreamTools(PYTHON, runner, has_converter)


@pytest.mark.parametrize(
    ("line", "version"),
    [('"ruff==0.14.10",', "0.14.10"), ('"my-ruff==2"', None)],
)
def test_the_pinned_ruff_is_read_from_setup_py(tmp_path: Path, line: str, version: str | None) -> None:
    write(tmp_path / "setup.py", f"_deps = [\n    {line}\n]\n")
    assert UpstreamTools.of(tmp_path, PYTHON).ruff == version


# fix


@both
def test_what_is_generated_and_what_is_copied_follows(maker: Maker, generation: str) -> None:
    toy = maker(generation=generation)
    toy.repair()
    ran = toy.fix()
    assert all(command_run.ok for command_run in ran)
    assert ran[0].command == f"python {CONVERTED[generation]}"
    # the copies changed birch, so the converter has another turn, and changes nothing more
    order = ("modular", "copies", "modular", "docstrings", "ruff check", "ruff format")
    assert all(word in command_run.command for word, command_run in zip(order, ran, strict=True))
    assert "class BirchLayer(GradientCheckpointingLayer):" in toy.text(BIRCH)
    assert "class CedarLayer(GradientCheckpointingLayer):" in toy.text(CEDAR)
    assert toy.changed() == [ASH, BIRCH, CEDAR]


def test_a_fixer_that_never_rests_is_run_a_few_times_only(maker: Maker) -> None:
    restless = f"""\
import sys
from pathlib import Path

if "--fix" in sys.argv:
    path = Path("{ASH}")
    path.write_text(path.read_text() + "# once more\\n")
print("  copies  (it)\\n  modular_conversion  (it)")
"""
    ran = maker(scripts={"utils/checkers.py": restless}).fix()
    assert ["copies" in command_run.command for command_run in ran[:-2]] == [False, True] * 3


def test_only_changed_files_are_formatted(maker: Maker) -> None:
    toy = maker(generation="scripts", scripts={"src/transformers/other.py": "untidy = 1  \n"})
    toy.repair()
    write(toy.tree / ASH, toy.text(ASH) + "tidy = 1  \n")
    toy.fix()
    assert toy.text(ASH).endswith("tidy = 1\n")
    assert toy.text("src/transformers/other.py") == "untidy = 1  \n"


def test_a_ruff_that_is_not_the_pinned_one_formats_nothing(maker: Maker) -> None:
    toy = maker(ruff="0.1.0")
    toy.repair()
    commands = [command_run.command for command_run in toy.fix()]
    assert commands[-1] == "python utils/checkers.py docstrings --fix"
    assert not any(command.startswith("ruff") for command in commands)
    assert "class CedarLayer(GradientCheckpointingLayer):" in toy.text(CEDAR)


@pytest.mark.parametrize(
    ("setup", "expected"), [('"ruff==1.2"', "ruff==1.2"), ("", "ruff")], ids=["pinned", "not pinned"]
)
def test_the_converter_cannot_do_without_ruff(maker: Maker, setup: str, expected: str) -> None:
    toy = maker(ruff=None, scripts={"setup.py": setup})
    python = f"{toy.tree}/.venv/bin/python"
    with pytest.raises(UpstreamError) as caught:
        toy.fix()
    assert str(caught.value) == (
        f"upstream's converter needs {expected}, and {python} has none: {python} -m pip install {expected}"
    )


@pytest.mark.parametrize("name", ["modular_conversion", "docstrings"])
def test_a_converter_or_a_fixer_that_fails_is_shown_as_such(maker: Maker, name: str) -> None:
    failed = [command_run for command_run in maker(failing_before=[name]).fix() if not command_run.ok]
    message = f"{name}: something is wrong here\n1 failed: {name}"
    assert failed == [CommandRun(f"python utils/checkers.py {name} --fix", 1, message)]


def test_what_a_fixer_leaves_behind_goes_and_what_was_there_stays(maker: Maker) -> None:
    leaving = "open('src/transformers/x.py.modular_backup', 'w').close()\nopen('utils/new.json', 'w').close()\n"
    toy = maker(generation="scripts", scripts={"utils/check_docstrings.py": leaving})
    write(toy.tree / "tests/models/ash/test_new.py", "new = 1  \n")
    toy.fix()
    assert toy.changed() == ["tests/models/ash/test_new.py"]
    assert toy.text("tests/models/ash/test_new.py") == "new = 1\n", "a new file is formatted like a changed one"


# drift


def test_what_the_fixers_change_by_themselves_is_reported_and_put_back(maker: Maker) -> None:
    toy = maker()
    toy.edit(BIRCH, "self.self_attn = BirchAttention(config)", "self.attention = BirchAttention(config)")
    commit(toy.tree, "birch goes its own way")
    assert toy.drift() == (BIRCH,)
    assert toy.changed() == []
    assert "self.attention = " in toy.text(BIRCH)


def test_a_stale_generated_file_is_seen_if_its_modular_file_is_named(maker: Maker) -> None:
    toy = maker(generation="scripts")
    toy.edit(CEDAR, "# Checkpointed classes: 0", "# Checkpointed classes: 7")
    commit(toy.tree, "written by hand")
    git(toy.tree, "branch", "--force", "main")
    assert toy.drift() == ()
    assert toy.drift(MODULAR) == (CEDAR,)
    assert toy.changed() == []


# check


def test_every_checker_is_run_once_and_reported(maker: Maker) -> None:
    toy = maker()
    reported: list[str] = []
    checks = toy.outcomes(step=reported.append)
    assert reported == [outcome.name for outcome in checks] == NAMES
    assert {(outcome.status, outcome.reason, outcome.before) for outcome in checks} == {("ok", "", None)}
    assert [outcome.ran.command for outcome in checks if outcome.ran] == [
        f"python utils/checkers.py {name}" for name in NAMES
    ]


def test_the_scripts_are_run_one_by_one(maker: Maker) -> None:
    checks = maker(generation="scripts", scripts={"Makefile": MAKEFILE}).check()
    assert {outcome.status for outcome in checks.values()} == {"ok"}
    assert [outcome.ran.command for outcome in checks.values() if outcome.ran] == [
        "python -c 'from transformers import *'",
        "python utils/check_copies.py",
        "python utils/check_modular_conversion.py",
        "python utils/check_repo.py",
        "python utils/check_inits.py",
        "python utils/check_docstrings.py",
        "ruff check src utils setup.py",
        "ruff format --check src utils setup.py",
    ]


@both
def test_what_the_series_breaks_has_failed(maker: Maker, generation: str) -> None:
    toy = maker(generation=generation, failing=["repo"])
    toy.repair()
    checks = toy.check()
    assert {name for name, outcome in checks.items() if outcome.status == CheckStatus.FAILED} == {
        "copies",
        "modular_conversion",
        "repo",
    }
    repo = checks["repo"]
    assert repo.reason == "it passes on the base"
    assert repo.ran is not None
    assert repo.before is not None
    assert repo.ran.output.startswith("repo: a model uses GradientCheckpointingLayer\n")
    assert (repo.ran.code, repo.before.code) == (1, 0)


def test_the_base_is_asked_once_for_all_series(maker: Maker) -> None:
    toy = maker(**FEWER, failing_before=["inits"])
    on_base: dict[str, CommandRun] = {}
    first = toy.outcomes(on_base=on_base)
    assert list(on_base) == ["inits"]
    on_base["inits"] = CommandRun("remembered", 1, on_base["inits"].output)
    again = toy.outcomes(on_base=on_base)
    assert [outcome.before for outcome in again if outcome.before] == [on_base["inits"]]
    assert [outcome.status for outcome in first] == [outcome.status for outcome in again]


# SERIES is 1 in the tree of the series and 0 on the base; each replaces another of upstream's scripts
SAME, DIFFERS = "the base fails in the same way", "the base fails too, with another output"
OUTCOMES = {
    "dummies": ("print('wrong'); sys.exit(f'FAILED ({SERIES}.31s)')", "failed before too", SAME),
    "repo": ("sys.exit('wrong in ' + str(SERIES))", "failed otherwise before", DIFFERS),
    "inits": ("sys.exit(1 + SERIES)", "failed", "it fails on the base too, with exit code 1"),
    "pipeline_typing": ("sys.exit(SERIES)", "failed", "it passes on the base"),
    "config_docstrings": ("sys.exit(1 - SERIES)", "ok", ""),
    "config_attributes": ("import subprocess; subprocess.run(['tidy'])", "not run", "it needs tidy, which @LACKS@"),
    "doctest_list": ("import pebbles", "not run", "it needs pebbles, which @LACKS@"),
    "doc_toc": ("SERIES and __import__('pebbles')", "failed", "it passes on the base"),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CheckerResult]:
    """Compare all of `OUTCOMES` in one toy."""
    head = "import sys\nfrom pathlib import Path\n\nSERIES = int(Path('series').exists())\n"
    scripts = {f"utils/check_{name}.py": f"{head}{code}\n" for name, (code, *_) in OUTCOMES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/usr/bin:/bin")
        toy = Maker(tmp_path_factory.mktemp("compared"))(**FEWER, scripts=scripts)
        write(toy.tree / "series", "")
        return toy.check()


@pytest.mark.parametrize(
    "name",
    OUTCOMES,
    ids=[
        "the same but for the time it took",
        "another message",
        "another exit",
        "broken",
        "mended",
        "a program that is not there",
        "a module that is not there",
        "a module that the series asks for",
    ],
)
def test_a_failure_is_compared_with_the_base_s(compared: dict[str, CheckerResult], name: str) -> None:
    _, status, reason = OUTCOMES[name]
    reason = reason.replace("@LACKS@", "the interpreter does not have")
    assert (compared[name].status, compared[name].reason) == (status, reason)


def test_a_checkout_without_tools_says_so(maker: Maker) -> None:
    toy = maker(generation="none")
    (only,) = toy.outcomes()
    assert (only.name, only.status, only.ran) == ("upstream's checkers", "not run", None)
    assert only.reason.startswith("this checkout has neither utils/checkers.py nor ")


@pytest.mark.parametrize(
    ("generation", "ruff", "has"),
    [("checkers", "0.1.0", "has ruff 0.1.0"), ("scripts", None, "has no ruff")],
    ids=["another", "none"],
)
def test_what_depends_on_ruff_is_not_run_with_another_one(
    maker: Maker, generation: str, ruff: str | None, has: str
) -> None:
    toy = maker(generation=generation, ruff=ruff)
    outcomes = toy.check()
    assert {name for name, outcome in outcomes.items() if outcome.status == CheckStatus.NOT_RUN} == FORMATTED
    assert {outcome.reason for outcome in outcomes.values()} == {
        "",
        f"setup.py pins ruff=={RUFF}, and the interpreter {has}: python -m pip install ruff=={RUFF}",
    }


def test_a_cache_is_neither_believed_nor_left(maker: Maker) -> None:
    toy = maker(cache=True)
    toy.repair()
    fixed, outcomes = toy.fix(), toy.check()
    assert {outcome.status for outcome in outcomes.values()} == {"ok"}, (
        "what the fixers do is what the checkers ask for"
    )
    ran = [*fixed, *(outcome.ran for outcome in outcomes.values() if outcome.ran)]
    assert all(
        command_run.command.endswith(" --no-cache") for command_run in ran if "checkers.py" in command_run.command
    )
    assert toy.changed() == [ASH, BIRCH, CEDAR]
    toy.python.run(["utils/checkers.py", "repo"], toy.tree)
    assert "utils/.checkers_cache.json" in toy.changed(), "the toy would leave one"


def test_what_a_checker_changes_is_put_back_before_the_next_one(maker: Maker) -> None:
    meddling = f"from pathlib import Path\nPath('{BIRCH}').write_text('')\nPath('left.txt').write_text('')\n"
    toy = maker(**FEWER, scripts={"utils/check_repo.py": meddling})
    toy.repair()
    before = toy.text(ASH)
    toy.check()
    assert toy.changed() == [ASH]
    assert toy.text(ASH) == before


def test_the_worktree_is_put_back_where_a_fixer_cannot_be_run(maker: Maker) -> None:
    broken = f"import sys\nfrom pathlib import Path\nPath('{ASH}').write_text('')\nsys.exit('list' in str(sys.argv))\n"
    toy = maker(scripts={"utils/checkers.py": broken})
    with pytest.raises(UpstreamError, match=r"`python utils/checkers.py all --list` does not list the checkers"):
        toy.drift()
    assert toy.changed() == []
