"""The contents of pyproject.toml, with one line for everything that is not allowed there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.cli.config import Config, ConfigError, OutputFormat, expand_codes
from ckpt_surgery.cli.main import main
from ckpt_surgery.static.discover import matches

KNOWN = ("CKPT001", "CKPT003", "CKPT010", "CKPT101")


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pyproject.toml"
    file.write_text(text)
    return file


def test_every_key_is_read(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [tool.ckpt_surgery]
        select = ["CKPT0"]
        ignore = ["CKPT006"]
        exclude = ["legacy", "gen/*"]
        include-unsupported = true
        show-unknown = true
        jobs = 3
        output-format = "sarif"
        [tool.ckpt_surgery.per-file-ignores]
        "train/*" = ["CKPT101"]
        """,
    )
    assert Config.load(tmp_path) == Config(
        path=file,
        select=("CKPT0",),
        ignore=("CKPT006",),
        exclude=("legacy", f"{tmp_path}/gen/*"),
        include_unsupported=True,
        show_unknown=True,
        jobs=3,
        output_format=OutputFormat.SARIF,
        per_file_ignores={f"{tmp_path}/train/*": ("CKPT101",)},
    )


def test_the_nearest_table_counts_from_the_path_or_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "[tool.ckpt_surgery]\njobs = 1\n")
    write(tmp_path / "a", "[tool.ckpt_surgery]\njobs = 2\n")
    write(tmp_path / "a" / "b", "[project]\nname = 'b'\n")
    (tmp_path / "a" / "b" / "m.py").touch()
    assert Config.load(tmp_path / "a" / "b" / "m.py").jobs == 2
    assert Config.load(tmp_path).jobs == 1
    write(tmp_path, "[tool.ckpt_surgery]\njobs = 4\n")
    monkeypatch.chdir(tmp_path)
    assert Config.load().jobs == 4
    assert Config.load(tmp_path / "gone" / "m.py").jobs == 4
    write(tmp_path, "[tool.other]\nx = 1\n")
    assert Config.load(tmp_path) == Config()


def test_a_working_folder_that_is_gone_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["check", "m.py"]) == 2
    assert capsys.readouterr().err == ("ckpt_surgery: error: the working folder no longer exists: change to another\n")


def test_a_pattern_with_a_slash_is_anchored_where_the_file_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "odd [name]"
    write(project, "[tool.ckpt_surgery]\nexclude = ['gen/*']\n")
    monkeypatch.chdir(tmp_path)
    exclude = Config.load(project).exclude
    assert matches(project / "gen" / "m.py", exclude)
    assert not matches(tmp_path / "gen" / "m.py", exclude)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("per-file-ignores = {'a.py' = 'CKPT001'}", "per-file-ignores must be a table of glob pattern"),
        ("jobs = 0", "jobs must be a whole number from 1 up, not 0"),
        ("select = 'CKPT001'", "select must be a list of strings, not 'CKPT001'"),
        ("ignore = [1]", "ignore must be a list of strings, not [1]"),
        ("show-unknown = 1", "show-unknown must be true or false, not 1"),
        ("output-format = 'xml'", "output-format must be one of text, json, github, sarif, html, not 'xml'"),
        ("per-file-ignores = ['a']", "per-file-ignores must be a table of glob pattern to list of codes"),
        ("selct = []", "has no key 'selct': did you mean select?"),
        ("zzz = 1", "has no key 'zzz': the keys are select, ignore, exclude,"),
    ],
)
def test_a_wrong_key_or_type_is_one_line_that_names_file_and_remedy(tmp_path: Path, line: str, said: str) -> None:
    file = write(tmp_path, f"[tool.ckpt_surgery]\n{line}\n")
    with pytest.raises(ConfigError) as error:
        Config.load(tmp_path)
    assert str(error.value).startswith(f"{file}: [tool.ckpt_surgery] ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[tool.ckpt_surgery\n", "is not valid TOML"),
        (b"[tool.x]\nname = '\xff'\n", "is not valid TOML"),
        (b"[tool]\nckpt_surgery = 1\n", "must be a table"),
        (b"[tool.ckpt-surgery]\njobs = 1\n", "rename it"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=said) as error:
        Config.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ()),
        (["CKPT003"], ("CKPT003",)),
        (["CKPT010,CKPT001"], ("CKPT001", "CKPT010")),
        (["CKPT010", "ckpt001 "], ("CKPT001", "CKPT010")),
        (["CKPT0"], ("CKPT001", "CKPT003", "CKPT010")),
        (["CKPT"], KNOWN),
        (["CKPT0,CKPT001"], ("CKPT001", "CKPT003", "CKPT010")),
    ],
)
def test_codes_and_prefixes_expand_in_the_order_of_the_rules(given: list[str], expected: tuple[str, ...]) -> None:
    assert expand_codes(given, KNOWN, "--select") == expected


def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        Config.load(tmp_path)
