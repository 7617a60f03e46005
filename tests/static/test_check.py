"""`check`: what it reads and reports, and that its cache is never out of date."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

from ckpt_surgery import check
from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.static import cache, snapshot
from ckpt_surgery.static import check as check_module
from tests.codemods.snippets import BAR, BY_KEYWORD, CHILD, INLINE, LAYERED, PARENT, PARENT_LAYERED, PLAIN
from tests.codemods.tools import FOO, tree


def codes(*paths: Path, **options: object) -> list[str]:
    return [finding.code for finding in check(paths, jobs=1, **options).findings]  # type: ignore[arg-type]


def test_a_finding_tells_code_place_class_family_and_repair(tmp_path: Path) -> None:
    result = check([tree(tmp_path, PLAIN)], jobs=1)
    (finding,) = result.findings
    line = PLAIN.split("\n").index("class FooLayer(nn.Module):") + 1
    assert (finding.code, finding.path, finding.line, finding.column) == ("CKPT001", str(tmp_path / FOO), line, 1)
    assert (finding.class_name, finding.family, finding.applicability) == ("FooLayer", "foo", Applicability.SAFE)
    assert finding.repairs
    assert result.faults == result.findings
    assert (result.files, result.problems, result.suppressed) == (1, (), 0)
    text = BY_KEYWORD.replace("hidden_states = layer(", 'name = "äöü"; hidden_states = layer(')
    (finding,) = check([tree(tmp_path / "1", text)], jobs=1).findings
    found_in = text.split("\n")[finding.line - 1]
    assert found_in[finding.column - 1 :].startswith("hidden_states=hidden_states")
    assert codes(tree(tmp_path / "2", LAYERED)) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["CKPT002", "CKPT003"]),
        ({"select": ["CKPT003"]}, ["CKPT003"]),
        ({"ignore": ["CKPT002"]}, ["CKPT003"]),
        ({"select": ["CKPT002", "CKPT003"], "ignore": ["CKPT003"]}, ["CKPT002"]),
        ({"per_file_ignores": {"modeling_foo.py": ["CKPT003"]}}, ["CKPT002"]),
        ({"per_file_ignores": {"modeling_bar.py": ["CKPT003"]}}, ["CKPT002", "CKPT003"]),
        ({"exclude": ["foo"]}, []),
    ],
    ids=["all", "select", "ignore", "both", "ignored in this file", "ignored in another file", "excluded"],
)
def test_options_choose_what_is_reported(tmp_path: Path, options: dict[str, object], expected: list[str]) -> None:
    root = tree(tmp_path, INLINE)
    assert codes(root, **options) == expected
    assert codes(root, **options) == expected  # now from the cache


def test_ignored_findings_are_counted_under_decorators_too(tmp_path: Path) -> None:
    root = tree(tmp_path, PLAIN.replace("class FooLayer", "# ckpt: ignore[CKPT001] on purpose\nclass FooLayer"))
    for _ in range(2):
        result = check([root], jobs=1)
        assert (result.findings, result.suppressed) == ((), 1)
    text = PLAIN.replace("class FooLayer", "# ckpt: ignore[CKPT001] on purpose\n@decorated\nclass FooLayer")
    assert codes(tree(tmp_path / "1", text)) == []


def test_a_model_without_the_flag_is_seen_when_asked_for(tmp_path: Path) -> None:
    root = tree(tmp_path, PLAIN.replace("    supports_gradient_checkpointing = True\n\n", ""))
    assert codes(root) == []
    assert codes(root, include_unsupported=True) == ["CKPT001"]
    assert codes(root) == []


def test_one_bad_file_leaves_the_others_checked(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {FOO: PLAIN, "models/bad/modeling_bad.py": "def checkpointing(:\n", "models/deep/modeling_deep.py": ""},
    )
    (root / "models/deep/modeling_deep.py").write_text("checkpointing = " + "(" * 5000 + ")" * 5000)
    for _ in range(2):
        result = check([root, tmp_path / "missing"], jobs=1)
        assert [finding.code for finding in result.findings] == ["CKPT001"]
        assert len(result.problems) == 3
        assert all("\n" not in str(problem) for problem in result.problems)


def test_nothing_that_is_read_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    root = tree(tmp_path, f"open({str(mark)!r}, 'w').close()\nraise SystemExit\n" + PLAIN)
    assert codes(root) == ["CKPT001"]
    assert not mark.exists()


def test_workers_find_the_same(tmp_path: Path) -> None:
    files = {f"models/m{n}/modeling_m{n}.py": (PLAIN, INLINE, BY_KEYWORD)[n % 3] for n in range(30)}
    root = tree(tmp_path, files)
    serial, parallel = check([root], jobs=1, cache=False), check([root], jobs=2, cache=False)
    assert serial.findings == parallel.findings
    assert len(serial.findings) == 40


# -- the parent in another file


def test_an_imported_block_is_understood_and_its_finding_is_in_its_file(tmp_path: Path) -> None:
    root = tree(tmp_path, {FOO: CHILD.replace(LAYERED, ""), BAR: PARENT_LAYERED})
    assert codes(root / FOO) == []
    assert codes(root) == []
    root = tree(tmp_path / "1", {FOO: CHILD, BAR: PARENT})
    (finding,) = check([root], jobs=1).findings
    assert (finding.path, finding.class_name, finding.family) == (str(root / BAR), "BarLayer", "bar")


REMOTE = """
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

class FooLayer(GradientCheckpointingLayer):
    def forward(self, hidden_states, past_key_value=None):
        return hidden_states

class FooModel(PreTrainedModel):
    def __init__(self, config):
        self.layers = nn.ModuleList([FooLayer() for _ in range(2)])

    def forward(self, hidden_states, past_key_values=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_value=past_key_values)
        return hidden_states
"""
LAYER_CLASS = """
class GradientCheckpointingLayer:
    def __call__(self, *args, **kwargs):
        if "NAME" in kwargs:
            kwargs["NAME"] = None
"""


def test_an_installed_layer_class_and_its_changes_count_if_none_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "remote", {"modeling_foo.py": REMOTE})
    for place in ("old", "new"):
        tree(tmp_path / place, {"transformers/__init__.py": "raise RuntimeError('imported')\n"})
    layers = "transformers/modeling_layers.py"
    tree(tmp_path / "old", {layers: LAYER_CLASS.replace("NAME", "past_key_value")})
    tree(tmp_path / "new", {layers: LAYER_CLASS.replace("NAME", "past_key_values")})
    others = [folder for folder in sys.path if "site-packages" not in folder]
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    for place, expected in (("old", []), ("new", ["CKPT008"]), ("old", []), ("none", ["CKPT008"])):
        monkeypatch.setattr(sys, "path", [str(tmp_path / place), *others])
        assert codes(root) == expected
    monkeypatch.setattr(sys, "path", [str(tmp_path / "old"), *others])
    tree(tmp_path / "old", {layers: LAYER_CLASS.replace("NAME", "past_key_values")})
    assert codes(root) == ["CKPT008"]
    tree(tmp_path / "remote", {"modeling_layers.py": LAYER_CLASS.replace("NAME", "past_key_value")})
    assert codes(root) == []


@pytest.mark.parametrize("alone", [False, True], ids=["whole tree", "child alone"])
def test_a_changed_parent_changes_the_findings_of_an_unchanged_child(tmp_path: Path, alone: bool) -> None:
    child = CHILD.replace("layer(hidden_states, attention_mask)", "layer(hidden_states=hidden_states)")
    root = tree(tmp_path, {FOO: child, BAR: PARENT_LAYERED})
    paths = [root / FOO] if alone else [root]
    assert "CKPT003" in codes(*paths)
    plain = PARENT_LAYERED.replace("class BarLayer(GradientCheckpointingLayer)", "class BarLayer(OtherBase)")
    tree(tmp_path, {BAR: plain})
    assert "CKPT003" not in codes(*paths)
    tree(tmp_path, {BAR: PARENT_LAYERED})
    assert "CKPT003" in codes(*paths)


# -- the cache of whole results


def test_a_second_run_reads_no_facts_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, {FOO: INLINE, "models/bad/modeling_bad.py": "def checkpointing(:\n"})
    first = check([root], jobs=1)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("analysed again")

    monkeypatch.setattr(check_module, "take_snapshot", fail)
    second = check([root], jobs=1)
    assert (first.findings, first.problems, first.suppressed) == (second.findings, second.problems, second.suppressed)
    assert first.findings
    monkeypatch.setattr(cache, "code_version", lambda: "another version of the rules")
    with pytest.raises(AssertionError, match="analysed again"):
        check([root], jobs=1)
    assert gc.isenabled(), "what is paused during the work goes on after an error too"


def test_an_entry_serves_a_file_of_the_same_text_under_its_own_path(tmp_path: Path) -> None:
    text = "# ckpt: ignore[CKPT999] no such rule\nx = 1\n"
    for folder in ("a", "b"):
        (problem,) = check(tree(tmp_path / folder, text), jobs=1).problems
        assert problem.path == str(tmp_path / folder / FOO)


def test_without_the_cache_nothing_is_kept(tmp_path: Path, own_cache: Path) -> None:
    check([tree(tmp_path, INLINE)], jobs=1, cache=False)
    assert list(own_cache.iterdir()) == []


@pytest.mark.parametrize(
    "text", [b"", b"junk", b"\x80\x05N.", b"\x80\x05K\x01K\x02\x86."], ids=["empty", "junk", "None", "pair"]
)
def test_entries_that_are_not_what_was_kept_are_made_anew(tmp_path: Path, own_cache: Path, text: bytes) -> None:
    root = tree(tmp_path, INLINE)
    first = check([root], jobs=1)
    entries = [path for path in own_cache.rglob("*") if path.is_file()]
    assert entries
    for entry in entries:
        entry.write_bytes(text)
    assert check([root], jobs=1).findings == first.findings


def test_a_cache_that_cannot_be_written_to_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("CKPT_SURGERY_CACHE", str(file))
    assert codes(tree(tmp_path, PLAIN)) == ["CKPT001"]


# -- the line length of the tree


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tool.ruff]\nline-length = 99\n", 99),
        ("[tool.ruff.lint]\nselect = []\n", 119),
        ("[tool.ruff\n", 119),
    ],
    ids=[
        "set",
        "not set",
        "broken",
    ],
)
def test_the_line_length_is_that_of_the_tree(tmp_path: Path, text: str, expected: int) -> None:
    root = tree(tmp_path, PLAIN)
    (root / "pyproject.toml").write_text(text)
    assert snapshot.line_length(str(root / FOO)) == expected


def test_paths_stay_as_given_and_one_path_or_code_may_be_given_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, PLAIN)
    monkeypatch.chdir(tmp_path)
    (finding,) = check(["models"], jobs=1).findings
    assert finding.path == os.path.join("models", "foo", "modeling_foo.py")
    root = tree(tmp_path / "1", INLINE)
    whole = check([root], select=["CKPT002"], jobs=1)
    assert check(root, select="CKPT002", jobs=1).findings == check(str(root), select="CKPT002", jobs=1).findings
    assert check(root, select="CKPT002", jobs=1).findings == whole.findings != ()
    assert check(root, ignore="CKPT002", select="CKPT003", jobs=1).problems == ()
