"""Findings that a `# ckpt: ignore` comment and per-file ignores suppress, and those that stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.suppress import Suppressions, without_ignored

KNOWN = ("CKPT001", "CKPT003", "CKPT004")


def finding(line: int = 1, code: str = "CKPT003", path: str = "m.py") -> Finding:
    return Finding(code, path, line, 1, "Block", "a message", Applicability.SAFE)


def suppressed(text: str, line: int, code: str = "CKPT003") -> bool:
    read = Suppressions.of(text, KNOWN)
    assert read.mistakes == ()
    return read.covers(finding(line, code))


@pytest.mark.parametrize(
    "comment",
    [
        "# ckpt: ignore[CKPT003]",
        "# ckpt: ignore[CKPT003] the tensor needs no gradient",
        "# ckpt: ignore[CKPT001, CKPT003]",
        "# noqa: E501  # ckpt: ignore[CKPT003]",
        "# ckpt: ignore[CKPT001]  # ckpt: ignore[CKPT003]",
        "# ckpt: ignore",
    ],
)
def test_a_comment_on_the_line_suppresses_the_finding(comment: str) -> None:
    assert suppressed(f"layer(x)  {comment}\nlayer(y)\n", 1)
    assert not suppressed(f"layer(x)  {comment}\nlayer(y)\n", 2)


@pytest.mark.parametrize(
    "comment",
    ["# ckpt: ignore[CKPT004]", "# ckpt: ignored", "# ckpt: ignore-next", "# ckpt ignore", "# ignore[CKPT003]"],
)
def test_another_code_or_another_comment_suppresses_nothing(comment: str) -> None:
    assert not suppressed(f"layer(x)  {comment}\n", 1)


def test_a_comment_is_about_its_own_line_or_the_next_line_of_code() -> None:
    assert suppressed("layer(x)  # ckpt: ignore\n", 1, "CKPT001")
    text = "if x:\n    # ckpt: ignore[CKPT003] reason\n    layer(x)\n    layer(y)\n"
    assert suppressed(text, 3)
    assert not suppressed(text, 4)
    assert suppressed("# ckpt: ignore[CKPT003]\n# and why\nlayer(x)\n", 3)
    assert not suppressed("# ckpt: ignore[CKPT003]\n\nlayer(x)\n", 3)
    assert not suppressed("layer(x)\n# ckpt: ignore[CKPT9]", 2)
    assert not suppressed("y = 1  # ckpt: ignore[CKPT003]\nlayer(x)\n", 2)
    text = "out = layer(\n    x,\n    # ckpt: ignore[CKPT003]\n    mask=mask,\n)\n"
    assert suppressed(text, 4)
    assert not suppressed(text, 1)


@pytest.mark.parametrize(
    "text",
    [
        "layer('# ckpt: ignore[CKPT003]')\n",
        '"""\n# ckpt: ignore[CKPT003]\n"""\nlayer(x)\n',
        "s = f'# ckpt: ignore {x}'\n",
    ],
)
def test_a_string_that_looks_like_the_comment_suppresses_nothing(text: str) -> None:
    assert not any(suppressed(text, line) for line in range(1, 5))


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("# ckpt: ignore[CKPT999]", "line 1: no rule has the code CKPT999"),
        ("# ckpt: ignore[CKPT0]", "line 1: no rule has the code CKPT0"),
        ("# ckpt: ignore[CKPT003", "line 1: the bracket of `ckpt: ignore[` is not closed"),
        ("# ckpt: ignore[]", "line 1: `ckpt: ignore[]` names no rule"),
    ],
)
def test_a_comment_that_is_wrong_is_a_problem_and_suppresses_nothing(comment: str, said: str) -> None:
    read = Suppressions.of(f"layer(x)  {comment}\n", KNOWN)
    (mistake,) = read.mistakes
    assert mistake.startswith(said)
    assert not read.covers(finding())


def test_what_is_right_in_a_wrong_comment_counts() -> None:
    read = Suppressions.of("layer(x)  # ckpt: ignore[CKPT003, CKPT03]\n", KNOWN)
    assert read.covers(finding())
    assert len(read.mistakes) == 1
    assert Suppressions.of("x = (  # ckpt: ignore\n'''", KNOWN).mistakes == ()


def test_per_file_ignores_take_the_named_codes_of_the_fitting_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    findings = [
        finding(1, "CKPT001", "old/a.py"),
        finding(2, "CKPT003", "old/a.py"),
        finding(3, "CKPT004", "old/a.py"),
        finding(1, "CKPT003", "new/a.py"),
    ]
    assert without_ignored(findings, {"old/*": ["CKPT003"], "a.py": ("CKPT001",)}) == findings[2:]
    assert without_ignored(findings, {}) == findings
