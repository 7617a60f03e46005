"""The discovered files, and the problems of unreadable ones."""

from __future__ import annotations

import os
import sys
from hashlib import blake2b
from pathlib import Path

import pytest

from ckpt_surgery import check
from ckpt_surgery.errors import OptionError, TransformersNotFound
from ckpt_surgery.static.discover import (
    MAX_BYTES,
    SKIPPED_PREFIXES,
    SourceFile,
    discover,
    imported_files,
    installed_models,
    matches,
    read_source,
)
from ckpt_surgery.static.results import Problem
from tests.codemods.tools import tree


def make(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")


def names(folder: Path, **options: object) -> list[str]:
    files, problems = discover([folder], **options)  # type: ignore[arg-type]
    assert problems == []
    return [file.relative_to(folder).as_posix() for file in files]


def test_a_walk_gives_the_python_files_that_may_hold_models_in_order(tmp_path: Path) -> None:
    make(tmp_path, "b/modeling_b.py", "a/modular_a.py", "a/modeling_a.py", "train.py", "README.md")
    assert names(tmp_path) == ["train.py", "a/modeling_a.py", "a/modular_a.py", "b/modeling_b.py"]
    make(tmp_path / "1", "env/lib/site-packages/modeling_x.py", "env/pyvenv.cfg", "kept.py")
    assert names(tmp_path / "1") == ["kept.py"]
    make(tmp_path / "2", "setup.py", "src/transformers/modeling_layers.py", "src/transformers/models/a/modeling_a.py")
    assert names(tmp_path / "2") == ["src/transformers/models/a/modeling_a.py"]
    assert names(tmp_path / "2" / "src/transformers") == ["models/a/modeling_a.py"]
    make(tmp_path / "3", "train.py", "models/net.py")
    assert names(tmp_path / "3") == ["train.py", "models/net.py"]


@pytest.mark.parametrize("prefix", SKIPPED_PREFIXES)
def test_a_file_without_a_model_is_read_only_when_named(tmp_path: Path, prefix: str) -> None:
    make(tmp_path, f"{prefix}x.py", "__init__.py", "modeling_x.py")
    assert names(tmp_path) == ["modeling_x.py"]
    named = tmp_path / f"{prefix}x.py"
    assert discover([named]) == ([named], [])


@pytest.mark.parametrize(
    "folder",
    [
        ".git",
        "tests",
    ],
)
def test_folders_that_hold_no_source_are_passed_over(tmp_path: Path, folder: str) -> None:
    make(tmp_path, f"{folder}/modeling_x.py", "kept.py")
    assert names(tmp_path) == ["kept.py"]
    assert names(tmp_path / folder) == ["modeling_x.py"], "named itself, it is walked"


@pytest.mark.parametrize(
    "inside",
    [
        "bin/x",
        "Lib/site-packages/x",
    ],
)
def test_a_folder_is_no_environment_by_the_mark_of_one_alone(tmp_path: Path, inside: str) -> None:
    make(tmp_path, "repository/pyvenv.cfg", "repository/kept.py", "repository/lib/kept.py", f"[env]/{inside}")
    make(tmp_path, "[env]/pyvenv.cfg", "[env]/other.py")
    assert names(tmp_path) == ["repository/kept.py", "repository/lib/kept.py"]
    assert "other.py" in names(tmp_path / "[env]"), "named itself, it is walked"
    assert [note.path for note in check([tmp_path], jobs=1).notes] == []
    assert [note.path for note in check([tmp_path], exclude=["repository"]).notes] == [str(tmp_path / "[env]")]


def test_each_file_comes_once_however_often_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.py")
    monkeypatch.chdir(tmp_path)
    assert discover(["a.py", ".", tmp_path, tmp_path / "a.py"]) == ([Path("a.py")], [])


def test_links_lead_to_each_file_once_and_back_to_none(tmp_path: Path) -> None:
    make(tmp_path, "blobs/0123abcd")
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "modeling_remote.py").symlink_to("../blobs/0123abcd")
    assert names(tmp_path / "snapshots") == ["modeling_remote.py"]
    make(tmp_path / "1", "one/a.py", "two/b.py")
    (tmp_path / "1" / "one" / "to").symlink_to("../two")
    (tmp_path / "1" / "two" / "to").symlink_to("../one")
    assert names(tmp_path / "1") == ["one/a.py", "two/b.py"]
    make(tmp_path / "2", "root/a.py", "outside/b.py")
    (tmp_path / "2" / "root" / "out").symlink_to("../outside")
    (tmp_path / "2" / "outside" / "back").symlink_to("../root")
    files, problems = discover([tmp_path / "2" / "root"])
    assert [file.name for file in files] == ["a.py", "b.py"]
    assert problems == []


def test_a_link_to_itself_is_a_problem_only_when_named(tmp_path: Path) -> None:
    (tmp_path / "self.py").symlink_to("self.py")
    (tmp_path / "loop").symlink_to("loop")
    make(tmp_path, "a.py")
    assert names(tmp_path) == ["a.py"]
    files, problems = discover([tmp_path / "a.py", tmp_path / "self.py"])
    assert [file.name for file in files] == ["a.py"]
    assert [str(problem) for problem in problems] == [
        f"{tmp_path}/self.py: is a cycle of symbolic links: not followed; remove the link"
    ]


@pytest.mark.parametrize("paths", ["", [""], ["a.py", ""]])
def test_an_empty_path_is_refused(paths: str | list[str]) -> None:
    with pytest.raises(OptionError, match="a path is empty"):
        discover(paths)


def test_what_cannot_be_read_is_a_problem_and_the_rest_is_found(tmp_path: Path) -> None:
    make(tmp_path, "a.py")
    (tmp_path / "modeling_x.py").symlink_to("gone.py")
    os.mkfifo(tmp_path / "pipe.py")
    files, problems = discover([tmp_path])
    assert files == [tmp_path / "a.py"]
    assert {Path(problem.path).name for problem in problems} == {"modeling_x.py", "pipe.py"}
    files, problems = discover([tmp_path / "gone.py", tmp_path / "a.py"])
    assert files == [tmp_path / "a.py"]
    assert problems == [Problem(f"{tmp_path}/gone.py", "no such file or folder: check the path")]
    make(tmp_path / "1", "model.txt")
    files, problems = discover([tmp_path / "1" / "model.txt"])
    assert files == []
    assert "is not a Python file" in problems[0].message
    assert discover(["a\0.py"])[1][0].message == "is not a path: it contains a NUL character"


def test_a_folder_that_may_not_be_listed_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "shut/a.py", "open/b.py")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    files, problems = discover([tmp_path])
    assert [file.name for file in files] == ["b.py"]
    assert "may not be read" in problems[0].message


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("old", ["new/a.py", "new/b_old.py"]),
        ("*_old.py", ["new/a.py", "old/c.py"]),
        ("new/", ["old/c.py"]),
        ("new/a.py", ["new/b_old.py", "old/c.py"]),
        ("./new/*", ["old/c.py"]),
        ("elsewhere/*", ["new/a.py", "new/b_old.py", "old/c.py"]),
    ],
)
def test_exclude_drops_what_fits_its_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, left: list[str]
) -> None:
    make(tmp_path, "new/a.py", "new/b_old.py", "old/c.py")
    monkeypatch.chdir(tmp_path)
    assert [str(file) for file in discover(["."], exclude=[pattern])[0]] == left


def test_exclude_fits_absolute_paths_and_never_a_named_file(tmp_path: Path) -> None:
    make(tmp_path, "old/a.py")
    assert discover([tmp_path / "old" / "a.py"], exclude=["old", "*.py"])[0] == [tmp_path / "old" / "a.py"]
    assert matches(tmp_path / "gen" / "a.py", [f"{tmp_path}/gen"])
    assert not matches(tmp_path / "generated" / "a.py", [f"{tmp_path}/gen"])


def test_installed_models_is_found_without_importing_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "transformers/models/a/modeling_a.py")
    (tmp_path / "transformers" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    assert installed_models() == tmp_path / "transformers" / "models"
    assert "transformers" not in sys.modules


@pytest.mark.parametrize("installed", [True, False])
def test_transformers_that_is_missing_or_has_no_models_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if installed:
        make(tmp_path, "transformers/__init__.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    with pytest.raises(TransformersNotFound, match="name the files or folders to check"):
        installed_models()


def read(tmp_path: Path, data: bytes) -> SourceFile | Problem:
    file = tmp_path / "a.py"
    file.write_bytes(data)
    return read_source(file)


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_text_keeps_its_line_endings(tmp_path: Path, ending: str) -> None:
    data = f"a = 1{ending}b = 2{ending}".encode()
    source = read(tmp_path, data)
    assert isinstance(source, SourceFile)
    assert source.text.encode() == data
    assert (source.encoding, source.bom) == ("utf-8", False)
    assert source.digest == blake2b(data, digest_size=16).hexdigest()


def test_a_declared_encoding_is_followed_and_a_byte_order_mark_kept(tmp_path: Path) -> None:
    source = read(tmp_path, b"\xef\xbb\xbfa = 1\n")
    assert isinstance(source, SourceFile)
    assert (source.text, source.encoding, source.bom) == ("a = 1\n", "utf-8", True)
    source = read(tmp_path, b"# -*- coding: latin-1 -*-\na = '\xe9'\n")
    assert isinstance(source, SourceFile)
    assert source.text.endswith("a = 'é'\n")
    assert source.text.encode(source.encoding) == (tmp_path / "a.py").read_bytes()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a = 1\n\0", "is binary"),
        (b"a = '\xff'\n", "cannot be decoded"),
        (b"# coding: klingon\n", "cannot be decoded"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "cannot be decoded"),
    ],
)
def test_a_file_that_is_no_text_is_one_line_that_says_what_to_do(tmp_path: Path, data: bytes, said: str) -> None:
    problem = read(tmp_path, data)
    assert isinstance(problem, Problem)
    assert said in problem.message
    assert "\n" not in str(problem)
    assert ";" in problem.message


def test_a_file_over_the_size_limit_is_not_read_and_one_at_the_limit_is(tmp_path: Path) -> None:
    assert isinstance(read(tmp_path, b"#" * MAX_BYTES), SourceFile)
    problem = read(tmp_path, b"#" * (MAX_BYTES + 1))
    assert isinstance(problem, Problem)
    assert "is larger than 5 MiB" in problem.message


def test_a_file_that_may_not_be_opened_or_is_gone_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_source(tmp_path / "gone.py") == Problem(
        f"{tmp_path}/gone.py", "no such file or folder: check the path"
    )

    def refuse(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    problem = read_source(tmp_path / "a.py")
    assert isinstance(problem, Problem)
    assert "may not be read" in problem.message


# -- what a script imports from its own folder, and nothing else

PATCH = """from transformers import Foo


def patch(model, fused):
    for layer in model.layers:
        layer.forward = fused
"""


def followed(folder: Path, files: dict[str, str], exclude: tuple[str, ...] = ()) -> set[str]:
    script = tree(folder, files) / "train.py"
    return {path.relative_to(folder).as_posix() for path in imported_files([script], [script], exclude)}


def test_a_finding_in_a_scripts_import_is_reported_and_none_in_a_folders(tmp_path: Path) -> None:
    root = tree(tmp_path, {"train.py": "from tools.patches import patch\n", "tools/patches.py": PATCH})
    (finding,) = check(root / "train.py", cache=False).findings
    assert (finding.code, Path(finding.path).name, finding.line) == ("CKPT013", "patches.py", 6)
    tree(tmp_path / "1", {"train.py": "import tests.helpers\n", "tests/helpers.py": PATCH})
    assert not check(tmp_path / "1", cache=False).findings


def test_imports_are_followed_through_packages_functions_and_dots(tmp_path: Path) -> None:
    files = {
        "train.py": "import a.b\n\ndef main():\n    from c import d\n",
        "a/__init__.py": "",
        "a/b.py": "from . import e\nfrom .f import g\nimport torch\n",
        "a/e.py": "raise SystemExit('never run')\n",
        "a/f.py": "import a.b\n",
        "c.py": "",
        "d.py": "",
        "unused.py": "",
    }
    assert followed(tmp_path, files) == {"a/__init__.py", "a/b.py", "a/e.py", "a/f.py", "c.py"}


def test_what_is_outside_the_folder_excluded_or_broken_is_left(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(PATCH)
    folder = tmp_path / "inside"
    files = {
        "train.py": "import outside, old, broken, linked\nfrom .. import outside\n",
        "broken.py": "(",
        "old.py": "",
    }
    tree(folder, files)
    (folder / "linked.py").symlink_to(tmp_path / "outside.py")
    assert followed(folder, files, ("old.py",)) == {"broken.py"}


def test_what_is_neither_file_nor_folder_is_a_problem_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    for path in (tmp_path, tmp_path / "pipe.py"):
        files, problems = discover([path])
        assert files == []
        assert len(problems) == 1
