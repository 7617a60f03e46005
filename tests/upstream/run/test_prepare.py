"""`prepare` on a toy checkout with its own checkers: what is made, when it is ready, and what stays untouched.

The toy's families are judged by their source here; the tests of released trees run models.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest

import ckpt_surgery.upstream.evidence.results
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, MODES, Level, Mode, ModeReport
from ckpt_surgery.measure.results import Outcome as Word
from ckpt_surgery.upstream.evidence.results import (
    CheckerResult,
    CheckStatus,
    CommandRun,
    Evidence,
    ReasonCode,
    RegressionKind,
    RegressionTest,
    SeriesStatus,
)
from ckpt_surgery.upstream.options import GroupBy, PrepareOptions
from ckpt_surgery.upstream.run import prepare as module
from ckpt_surgery.upstream.run import series, series_evidence, workspace
from ckpt_surgery.upstream.run.checkers import UpstreamTools
from ckpt_surgery.upstream.run.checkout import SeriesBranch
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.parallel import run_all_in_trees
from ckpt_surgery.upstream.run.prepare import FinishedSeries, PrepareResult, prepare
from ckpt_surgery.upstream.run.reproduce import TreeReports
from tests.measure.fault_cases import fault, why
from tests.upstream import toy_checkout
from tests.upstream.git_toys import state

pytestmark = pytest.mark.slow

SCHEMA = Path(ckpt_surgery.upstream.evidence.results.__file__).with_name("evidence.schema.json")
FAULT = fault(FaultKind.NOT_RECOMPUTED, "layers.0", explanation=why(CauseKind.PLAIN_BLOCK))
STATISTICS = fault(FaultKind.BUFFER_CHANGED, "layers.0.norm.running_mean", explanation=why(CauseKind.BATCH_NORM_TWICE))
EQUAL: dict[Level, Word] = {"set": "ok", "values": "ok"}
MODELS = "src/transformers/models"


class Verify:
    """A fake of the models: a family is right if its modeling file names the checkpointing layer."""

    def __init__(self) -> None:
        self.right: Collection[str] = ()
        """Families that are right in any case."""
        self.stubborn: Collection[str] = ()
        """Families that no repair helps."""
        self.counting: Collection[str] = ()
        """Families in which the repair leaves running statistics that move twice."""

    def __call__(
        self,
        python: PythonInterpreter,
        tree: Path,
        families: Sequence[str],
        *,
        modules: Sequence[str] = (),
        **_: object,
    ) -> TreeReports:
        reports = {family: (self.report(tree, family),) for family in families}
        return TreeReports(reports, self.imported(tree, modules) if modules else None)

    def imported(self, tree: Path, modules: Sequence[str]) -> CommandRun:
        texts = [(tree / "src" / f"{name.replace('.', '/')}.py").read_text("latin-1") for name in modules]
        return CommandRun(f"import {', '.join(modules)}", int(any("import nowhere" in text for text in texts)))

    def report(self, tree: Path, family: str) -> Report:
        text = (tree / MODELS / family / f"modeling_{family}.py").read_text(encoding="utf-8")
        repaired = "(GradientCheckpointingLayer)" in text
        faults = [FAULT] if family in self.stubborn or not (repaired or family in self.right) else []
        if repaired and family in self.counting:
            faults = [STATISTICS]
        word: Word = "failed" if faults else "ok"
        outcomes = dict.fromkeys(LEVELS, word) | (EQUAL if faults == [STATISTICS] else {})
        modes = tuple(ModeReport(mode, tuple(faults), outcomes) for mode in MODES)
        return Report(f"{family.title()}Model", family, modes=modes)


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Verify:
    stand_in = Verify()
    monkeypatch.setattr(workspace, "verify_tree", stand_in)
    return stand_in


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what takes most of the time, for the tests of something else."""
    monkeypatch.setattr(series, "regression", lambda family, *_, **__: RegressionTest(family, RegressionKind.COVERED))
    monkeypatch.setattr(
        series_evidence,
        "family_tests",
        lambda family, *_, **__: CheckerResult(f"tests/models/{family}", CheckStatus.OK),
    )


@pytest.fixture
def toy(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Make a toy whose interpreter has no pytest: no test of upstream's runs."""
    return toy_checkout.make(tmp_path / "transformers", site="quick" not in request.fixturenames)


@pytest.fixture
def untied(toy: Path) -> Path:
    """Make the same with a birch that is nobody's copy."""
    path = toy / MODELS / "birch" / "modeling_birch.py"
    path.write_text(re.sub(r"# Copied from .*\n", "", path.read_text()))
    toy_checkout.commit(toy, "Birch goes its own way")
    return toy


@dataclass(frozen=True)
class Ash:
    """The series of all three families, made once."""

    checkout: Path
    before: dict[str, bytes]
    delivered: FinishedSeries
    outcome: PrepareResult

    @property
    def evidence(self) -> Evidence:
        return self.delivered.evidence

    @property
    def folder(self) -> Path:
        return self.delivered.folder


@pytest.fixture(scope="module")
def ash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ash]:
    toy = toy_checkout.make(tmp_path_factory.mktemp("ash") / "transformers")
    (toy / "notes.txt").write_text("mine\n")
    before = state(toy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "verify_tree", Verify())
        outcome = made(toy)
        (delivered,) = outcome.series
        yield Ash(toy, before, delivered, outcome)


def made(checkout: Path, *families: str, **options: Any) -> PrepareResult:
    return prepare(checkout, PrepareOptions(out=checkout.parent / "out", families=families, **options))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def git(folder: Path, *arguments: str) -> str:
    return toy_checkout.git(folder, *arguments).strip()


def reasons(outcome: PrepareResult) -> str:
    return "\n".join(reason.text for series in outcome.series for reason in series.evidence.reasons)


# --- what is made -----------------------------------------------------------------------------------------


def test_a_series_is_ready_where_all_that_upstream_has_is_content(ash: Ash) -> None:
    assert (ash.evidence.status, ash.evidence.reasons) == ("ready", ())
    assert {check.status for check in ash.evidence.checks} == {"ok"}
    assert {(row.model, row.verdict) for row in ash.evidence.rows} == {
        (f"{name}Model", "repaired") for name in ("Ash", "Birch", "Cedar")
    }
    assert (ash.outcome.left_out, ash.outcome.idle) == ({}, {})


def test_what_upstreams_scripts_bring_along_is_in_the_same_commit(ash: Ash) -> None:
    first, second = ash.evidence.commits
    assert first.families == ("ash", "birch", "cedar")
    assert first.checkers == (f"{MODELS}/birch/modeling_birch.py",)  # the copy of ash's layer
    assert second.files == ("tests/models/birch/test_modeling_birch.py",)  # where nothing but the test is left to do
    assert (second.imported, second.rules) == (None, ())
    lines = git(ash.checkout, "show", "--no-patch", "--format=%B", second.sha).splitlines()
    covered = "Existing tests cover birch now: the exception that kept it out is removed."
    assert lines[:3] == ["Test gradient checkpointing of birch", "", covered]
    message = git(ash.checkout, "show", "--no-patch", "--format=%B", first.sha)
    said = "- AshLayer becomes a GradientCheckpointingLayer (CKPT001)\n"
    assert message.startswith(f"Repair gradient checkpointing of ash and cedar\n\n{said}")
    assert f"Updated by the other scripts of this repository:\n- {first.checkers[0]}\n" in message
    assert message.splitlines()[-1].startswith("Assisted-by: ckpt_surgery ")


def test_each_family_has_a_test_that_fails_before_and_passes_after(ash: Ash) -> None:
    kinds = {test.family: test.kind for test in ash.evidence.regressions}
    assert kinds == {"ash": "covered", "cedar": "covered", "birch": "exception removed"}
    for test in ash.evidence.regressions:
        assert test.before is not None
        assert test.after is not None
        assert (test.before.ok, test.after.ok) == (False, True)


def test_the_folder_holds_what_the_evidence_says(ash: Ash) -> None:
    names = {path.name for path in ash.folder.iterdir()}
    assert names == {*ash.evidence.patches, "evidence.md", "evidence.json", "body.md", "siblings.md", ".made.json"}
    document = json.loads((ash.folder / "evidence.json").read_text())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["status"] == "ready"
    assert ash.folder == ash.checkout.parent / "out" / "ash"


def test_no_document_names_a_place_of_the_machine(ash: Ash) -> None:
    for path in ash.folder.iterdir():
        text = path.read_text()
        for place in (ash.checkout.parent, Path(sys.prefix), Path.home()):
            assert f"{place}/" not in text, path


def test_the_patches_applied_to_a_fresh_clone_give_the_same_tree(ash: Ash) -> None:
    clone = ash.checkout.parent / "clone"
    git(ash.checkout.parent, "clone", "--quiet", "--branch=main", str(ash.checkout), str(clone))
    git(clone, "config", "user.name", "Another")
    git(clone, "config", "user.email", "another@example.com")
    git(clone, "am", "--quiet", *(str(ash.folder / name) for name in ash.evidence.patches))
    assert git(clone, "rev-parse", "HEAD^{tree}") == git(ash.checkout, "rev-parse", f"{ash.evidence.branch}^{{tree}}")


def test_the_checkout_stays_as_it_was_but_for_the_branch(ash: Ash) -> None:
    after = state(ash.checkout)
    refs = ("refs/heads/ckpt-surgery/ash", "logs/refs/heads/ckpt-surgery/ash", "refs/ckpt-surgery/ash")
    assert set(after) - set(ash.before) == {f".git/{ref}" for ref in refs}
    assert {name: after[name] for name in ash.before} == ash.before
    assert git(ash.checkout, "branch", "--show-current") == "main"


def test_every_commit_alone_satisfies_upstreams_checkers(ash: Ash) -> None:
    python = ash.checkout / ".venv" / "bin" / "python"
    for commit in ash.evidence.commits:
        place = ash.checkout.parent / commit.sha
        git(ash.checkout.parent, "clone", "--quiet", str(ash.checkout), str(place))
        git(place, "checkout", "--quiet", commit.sha)
        for name in ("copies", "modular_conversion"):
            run = [str(python), "utils/checkers.py", name]
            assert subprocess.run(run, cwd=place, capture_output=True, check=False).returncode == 0, (commit, name)


def test_the_same_input_gives_the_same_folder_and_the_same_branch(toy: Path, verify: Verify, quick: None) -> None:
    made(toy, "birch")
    before, tip = files(toy.parent / "out"), git(toy, "rev-parse", "ckpt-surgery/birch")
    made(toy, "birch")
    assert files(toy.parent / "out") == before
    assert git(toy, "rev-parse", "ckpt-surgery/birch") == tip


def test_without_a_converter_generated_files_get_the_codemods_edit(
    tmp_path: Path, verify: Verify, quick: None
) -> None:
    toy = toy_checkout.make(tmp_path / "transformers", generation="none", site=False)
    outcome = made(toy)
    (prepared,) = outcome.series
    assert prepared.evidence.status == SeriesStatus.UNCHECKED
    assert "upstream's checkers: not run (this checkout has neither" in reasons(outcome)
    assert all(commit.regenerated == () for commit in prepared.evidence.commits)
    text = git(toy, "show", f"{prepared.evidence.branch}:{MODELS}/cedar/modeling_cedar.py")
    assert "class CedarLayer(GradientCheckpointingLayer)" in text
    assert "# Checkpointed classes: 0" in text


def with_past_state_first(text: str) -> str:
    """Write a model whose block takes past state before a tensor that carries gradient."""
    for old, new in (
        ("attention_mask=None):\n        return", "layer_past=None, encoder_hidden_states=None):\n        return"),
        ("attention_mask=None):\n        for", "past=None, memory=None):\n        for"),
        ("layer(hidden_states, attention_mask)", "layer(hidden_states, past, encoder_hidden_states=memory)"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def test_a_repair_that_may_break_other_code_is_named_with_its_signature(
    untied: Path, verify: Verify, quick: None
) -> None:
    path = untied / MODELS / "birch" / "modeling_birch.py"
    path.write_text(with_past_state_first(path.read_text()))
    toy_checkout.commit(untied, "Past state comes first")
    (prepared,) = made(untied, "birch").series
    (sentence,) = prepared.evidence.unsafe  # the new base class waits for the new signature, and that is in
    assert sentence.startswith(f"CKPT005 in {MODELS}/birch/modeling_birch.py: BirchLayer.forward takes")
    (signature,) = prepared.evidence.signatures
    assert (signature.class_name, signature.after) == (
        "BirchLayer",
        "hidden_states, encoder_hidden_states=None, layer_past=None",
    )
    assert sentence in (prepared.folder / "evidence.md").read_text()


def test_one_series_for_each_family_each_on_the_base_by_itself(toy: Path, verify: Verify, quick: None) -> None:
    outcome = made(toy, group_by=GroupBy.FAMILY)
    assert [prepared.evidence.branch for prepared in outcome.series] == ["ckpt-surgery/ash", "ckpt-surgery/birch"]
    base = git(toy, "rev-parse", "main")
    for prepared in outcome.series:
        assert git(toy, "rev-parse", f"{prepared.evidence.branch}~{len(prepared.evidence.commits)}") == base
    birch = outcome.series[1].evidence
    sibling_reasons = {sibling.family: sibling.reason for sibling in birch.siblings}
    assert sibling_reasons["ash"] == "belongs to the series ash, if its repair can be shown"
    # the copy parts from a source that stays as it is, and the comment that says otherwise goes
    assert "Copied from" not in git(toy, "show", f"ckpt-surgery/birch:{MODELS}/birch/modeling_birch.py")
    assert "is gone" in "".join(map(str, birch.notes))
    assert outcome.series[0].evidence.notes == ()  # there it is brought along
    assert {row.verdict for row in birch.rows} == {"repaired"}


# --- when it is not ready ---------------------------------------------------------------------------------


def test_a_checker_that_fails_on_the_series_alone_is_not_ready(tmp_path: Path, verify: Verify, quick: None) -> None:
    toy = toy_checkout.make(tmp_path / "transformers", failing=("repo",), failing_before=("inits",), site=False)
    outcome = made(toy, "birch")
    assert outcome.series[0].evidence.status == SeriesStatus.NOT_READY
    assert reasons(outcome).splitlines() == ["upstream's checker repo fails", "inits fails, on the base too"]


def test_an_import_that_fails_is_not_ready(toy: Path, verify: Verify, quick: None) -> None:
    # the converter writes what the modular file says, and that needs a package which is not there
    path = toy / MODELS / "ash" / "modeling_ash.py"
    path.write_text(path.read_text().replace("from torch import nn\n", "from torch import nn\nimport nowhere\n", 1))
    toy_checkout.commit(toy, "An import of what is not there")
    outcome = made(toy, "ash")
    assert outcome.series[0].evidence.status == SeriesStatus.NOT_READY
    assert "cannot be imported" in reasons(outcome)


def a_new_test(family: str, *_: object, modes: Sequence[Mode], **__: object) -> RegressionTest:
    """Stand in for the regression of a family without an upstream test: a new test if some mode can pass it."""
    return RegressionTest(family, RegressionKind.ADDED if modes else RegressionKind.IMPOSSIBLE)


def test_running_statistics_that_move_twice_are_only_a_note(
    toy: Path, verify: Verify, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "regression", a_new_test)
    verify.counting = ("birch",)
    (prepared,) = made(toy, "birch").series
    assert [test.kind for test in prepared.evidence.regressions] == ["added"]
    assert (prepared.evidence.status, [reason.code for reason in prepared.evidence.reasons]) == (
        SeriesStatus.READY,
        [ReasonCode.STATISTICS_DIFFER],
    )
    assert "running statistics of batch normalisation" in (prepared.folder / "evidence.md").read_text()


@pytest.mark.parametrize("generation", ["checkers", "scripts"])
def test_a_checkout_without_a_branch_main_is_compared_with_the_base(
    tmp_path: Path, verify: Verify, quick: None, generation: Literal["checkers", "scripts"]
) -> None:
    toy = toy_checkout.make(tmp_path / "transformers", generation=generation, site=False)
    git(toy, "branch", "--move", "main", "trunk")
    outcome = made(toy, "cedar", base="trunk")
    (prepared,) = outcome.series
    assert (prepared.evidence.status, reasons(outcome)) == ("ready", "")
    branch = prepared.evidence.branch
    generated = git(toy, "show", f"{branch}:{MODELS}/cedar/modeling_cedar.py")
    assert "# Checkpointed classes: 1" in generated
    assert git(toy, "for-each-ref", "--format=%(refname)", "refs/heads").splitlines() == [
        f"refs/heads/{branch}",
        "refs/heads/trunk",
    ]


def test_files_that_upstreams_fixers_change_anyway_are_named(toy: Path, verify: Verify, quick: None) -> None:
    path = toy / MODELS / "birch" / "modeling_birch.py"
    tied = "# Copied from transformers.models.ash.modeling_ash.AshAttention with Ash->Birch\n"
    stale = "return self.projection(hidden_states) * 1"
    text = path.read_text().replace("class BirchAttention", f"{tied}class BirchAttention", 1)
    path.write_text(text.replace("return self.projection(hidden_states)", stale, 1))
    toy_checkout.commit(toy, "A copy that is none any more")
    outcome = made(toy, "birch")
    assert outcome.series[0].evidence.status == SeriesStatus.UNCHECKED
    assert f"{MODELS}/birch/modeling_birch.py: upstream's fixers change it on the base already" in reasons(outcome)


def with_a_stale_copy(toy: Path, copied: str) -> str:
    """Add a model elm whose copy of a class of ash has diverged; return its file's path."""
    name = f"{MODELS}/elm/modeling_elm.py"
    text = (toy / MODELS / "ash" / "modeling_ash.py").read_text().partition("class AshModel")[0]
    tied = f"# Copied from transformers.models.ash.modeling_ash.{copied} with Ash->Elm\nclass Elm"
    text = text.replace(f"class {copied}", f"{tied}{copied.removeprefix('Ash')}").replace("Ash", "Elm")
    text = text.replace("modeling_ash.Elm", "modeling_ash.Ash").replace("with Elm", "with Ash")
    text = text.replace("self.projection(hidden_states)\n", "self.projection(hidden_states) * 1\n")
    text = text.replace("return hidden_states +", "return 1 * hidden_states +")
    toy_checkout.write(toy / name, f"{text.rstrip()}\n")
    toy_checkout.commit(toy, "A copy that is none any more")
    return name


@pytest.mark.parametrize("seen_on_the_base", [True, False])
def test_files_that_fixers_change_elsewhere_are_not_part_of_a_repair(
    toy: Path, verify: Verify, quick: None, monkeypatch: pytest.MonkeyPatch, seen_on_the_base: bool
) -> None:
    stale = with_a_stale_copy(toy, "AshAttention")
    if not seen_on_the_base:
        monkeypatch.setattr(UpstreamTools, "drift", lambda *_: frozenset())
    (prepared,) = made(toy, "birch").series
    assert (stale in prepared.evidence.files) is not seen_on_the_base
    if seen_on_the_base:
        assert prepared.evidence.files == (f"{MODELS}/birch/modeling_birch.py",)
        texts = [reason.text for reason in prepared.evidence.reasons]
        assert (prepared.evidence.status, texts) == (SeriesStatus.READY, ["copies fails, on the base too"])


@pytest.mark.parametrize("changed", [False, True], ids=["no signature changes", "a signature changes"])
def test_docstrings_are_mended_only_where_a_signature_changes(
    untied: Path, verify: Verify, quick: None, changed: bool
) -> None:
    path = untied / MODELS / "birch" / "modeling_birch.py"
    if changed:
        path.write_text(with_past_state_first(path.read_text()))
        toy_checkout.commit(untied, "Past state comes first")
    (prepared,) = made(untied, "birch").series
    (made_commit,) = prepared.evidence.commits
    commands = [ran.command for ran in made_commit.fixes]
    assert any("copies" in command for command in commands)
    assert any("docstrings" in command for command in commands) is changed
    assert bool(prepared.evidence.signatures) is changed


def test_jobs_that_run_at_once_give_what_one_after_another_gives(
    tmp_path: Path, verify: Verify, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toy_checkout.make(tmp_path / "transformers", failing=("repo",), failing_before=("inits",), site=False)

    def documents(jobs: int) -> dict[str, bytes]:
        made(toy, group_by=GroupBy.FAMILY, jobs=jobs)
        return files(toy.parent / "out")

    in_turn = documents(1)
    assert {name.partition("/")[0] for name in in_turn} == {"ash", "birch"}
    assert documents(3) == in_turn

    def as_they_end(*arguments: Any) -> list[Any]:
        return run_all_in_trees(*arguments)[::-1]

    monkeypatch.setattr(series_evidence, "run_all_in_trees", as_they_end)
    assert documents(3) != in_turn


def test_what_upstreams_tests_leave_is_in_no_commit(toy: Path, verify: Verify) -> None:
    path = toy / "tests" / "test_modeling_common.py"
    junk = "        open('trained.json', 'w').write('x')\n        open('setup.py', 'a').write('# x')\n"
    start = "    def test_forward(self):\n"
    path.write_text(
        path.read_text().replace(start, f"{start}{junk}").replace("def test_forward", "def test_checkpointing")
    )
    toy_checkout.commit(toy, "Tests that write")
    (prepared,) = made(toy, "birch").series
    assert prepared.evidence.files == (
        f"{MODELS}/birch/modeling_birch.py",
        "tests/models/birch/test_modeling_birch.py",
    )
    assert (prepared.evidence.status, prepared.evidence.reasons) == ("ready", ())


def test_a_file_in_another_encoding_keeps_it(toy: Path, verify: Verify, quick: None) -> None:
    path = toy / MODELS / "birch" / "modeling_birch.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\n" + path.read_bytes())
    toy_checkout.commit(toy, "Latin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "verify_tree", lambda *_, **__: TreeReports({"birch": ()}))
        made(toy, "birch", include_unreproduced=True)
    shown = ["git", "show", f"ckpt-surgery/birch:{MODELS}/birch/modeling_birch.py"]
    text = subprocess.run(shown, cwd=toy, capture_output=True, check=True).stdout
    assert text.startswith(b"# -*- coding: latin-1 -*-\n# \xe9\n")
    assert b"GradientCheckpointingLayer" in text


def test_a_file_that_is_a_link_is_refused(toy: Path, verify: Verify, quick: None) -> None:
    path = toy / MODELS / "birch" / "modeling_birch.py"
    elsewhere = toy.parent / "mine.py"
    elsewhere.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(elsewhere)
    toy_checkout.commit(toy, "A link")
    before = elsewhere.read_bytes()
    with pytest.raises(UpstreamError, match=r"modeling_birch\.py is a symbolic link in the checkout"):
        made(toy, "birch")
    assert elsewhere.read_bytes() == before


# --- what is left out -------------------------------------------------------------------------------------


def test_a_family_without_a_fault_to_show_is_left_out_and_listed(untied: Path, verify: Verify, quick: None) -> None:
    verify.right = ("birch",)
    outcome = made(untied, group_by=GroupBy.ALL)
    (prepared,) = outcome.series
    assert prepared.evidence.families == ("ash", "cedar")
    assert list(outcome.left_out) == ["birch"]
    assert "verify finds no fault in it as it is" in outcome.left_out["birch"]
    assert "birch" in (prepared.folder / "siblings.md").read_text()


def test_a_family_that_no_repair_helps_is_left_out_and_put_back(untied: Path, verify: Verify, quick: None) -> None:
    verify.stubborn = ("birch",)
    outcome = made(untied, group_by=GroupBy.ALL)
    assert "verify finds the same faults after the repair as before" in outcome.left_out["birch"]
    assert git(untied, "diff", "--name-only", "main", "ckpt-surgery/all", "--", f"{MODELS}/birch") == ""


@pytest.mark.parametrize(
    ("families", "right", "asked"),
    [(("ash", "cedar"), "cedar", False), (("birch",), "birch", True)],
    ids=["its block is another family's", "it is asked for"],
)
def test_a_family_without_a_fault_that_is_included_is_reported(
    toy: Path, verify: Verify, quick: None, families: tuple[str, ...], right: str, asked: bool
) -> None:
    verify.right = (right,)
    outcome = made(toy, *families, include_unreproduced=asked)
    (prepared,) = outcome.series
    assert set(families) <= set(prepared.evidence.families)
    assert prepared.evidence.status == SeriesStatus.READY
    assert reasons(outcome).startswith(f"{right}: verify shows no fault that the repair removes")


def test_an_issue_that_is_named_completes_the_body_and_is_in_the_command(
    toy: Path, verify: Verify, quick: None
) -> None:
    issue = "https://github.com/huggingface/transformers/issues/1"
    (prepared,) = made(toy, "birch", coordination=issue).series
    body = (prepared.folder / "body.md").read_text()
    assert issue in body
    assert "- [ ] The issue was discussed." in body
    assert f"--coordination {issue}" in prepared.evidence.command
    assert any("gh pr create" in line for line in prepared.next)
    said = {sibling.family: (sibling.included, sibling.reason) for sibling in prepared.evidence.siblings}
    assert (said["birch"], said["ash"]) == ((True, "changed in this series"), (False, "not asked for"))
    (prepared,) = made(toy, "birch").series
    assert "- [ ]" not in (prepared.folder / "body.md").read_text()
    assert not any("gh pr create" in line for line in prepared.next)


def test_nothing_is_pushed_and_nothing_is_opened(
    toy: Path, verify: Verify, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, programs = toy.parent / "remote.git", toy.parent / "bin"
    git(toy.parent, "clone", "--quiet", "--bare", str(toy), str(remote))
    git(toy, "remote", "add", "origin", str(remote))
    toy_checkout.write(programs / "gh", f"#!/bin/sh\ntouch {toy.parent}/opened\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    before = files(remote)
    made(toy, "birch", coordination="https://github.com/huggingface/transformers/issues/1")
    assert files(remote) == before
    assert not (toy.parent / "opened").exists()


def test_only_the_chosen_rules_are_used(toy: Path, verify: Verify, quick: None) -> None:
    outcome = made(toy, "birch", codes=("CKPT003",))
    assert outcome.series == ()
    options = PrepareOptions(out=toy.parent / "out", families=("birch",), codes=("CKPT001",))
    assert prepare(toy, options).series[0].evidence.rules.keys() == {"CKPT001"}


# --- what ends early --------------------------------------------------------------------------------------


def left_behind(toy: Path, existing: Iterable[Path]) -> list[Path]:
    return [path for path in toy.parent.iterdir() if path not in existing]


@pytest.mark.parametrize(
    ("where", "end"),
    [
        ("build_series", KeyboardInterrupt),
        ("check", OSError(28, "No space left on device")),
        ("evidence_markdown", KeyboardInterrupt),
        ("the branch", KeyboardInterrupt),
        ("the move", OSError(28, "No space left on device")),
    ],
)
def test_whatever_ends_the_work_leaves_nothing_behind(
    toy: Path,
    verify: Verify,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    end: BaseException | type[BaseException],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise end

    if where == "the move":
        monkeypatch.setattr(Path, "chmod", fail)
    elif where == "check":
        monkeypatch.setattr(UpstreamTools, "checker_tasks", fail)
    elif where == "the branch":
        monkeypatch.setattr(SeriesBranch, "set", fail)
    else:
        monkeypatch.setattr(module, where, fail)
    before, existing = state(toy), list(toy.parent.iterdir())
    with pytest.raises((KeyboardInterrupt, OSError, UpstreamError)):
        made(toy, "birch")
    assert state(toy) == before
    assert left_behind(toy, existing) == []
    assert git(toy, "worktree", "list").count("\n") == 0


def test_a_series_that_is_finished_when_the_next_one_fails_is_kept(
    toy: Path, verify: Verify, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[str] = []
    build_series = series.build_series

    def once(*arguments: Any) -> Any:
        if finished:
            raise KeyboardInterrupt
        return build_series(*arguments)

    monkeypatch.setattr(module, "build_series", once)
    options = PrepareOptions(out=toy.parent / "out", group_by=GroupBy.FAMILY)
    with pytest.raises(KeyboardInterrupt):
        prepare(toy, options, finished=lambda prepared: finished.append(prepared.evidence.branch))
    assert finished == ["ckpt-surgery/ash"]
    assert git(toy, "rev-parse", "ckpt-surgery/ash")
    assert [path.name for path in (toy.parent / "out").iterdir()] == ["ash"]


def test_a_repository_that_is_no_transformers_is_refused(tmp_path: Path) -> None:
    toy_checkout.write(tmp_path / "other" / "readme", "x")
    for arguments in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "A"],
        ["config", "user.email", "a@b"],
    ):
        git(tmp_path / "other", *arguments)
    toy_checkout.commit(tmp_path / "other", "other")
    with pytest.raises(UpstreamError, match="has no src/transformers/models: name a checkout of transformers"):
        made(tmp_path / "other")
