"""Invented evidence for `ckpt_surgery pr`, with every kind of outcome. Nothing runs here.

The status and the reasons are those that `judged` gives.
"""

from __future__ import annotations

import re
from dataclasses import replace

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ckpt_surgery.measure.results import MODES
from ckpt_surgery.upstream.evidence.judge import judged
from ckpt_surgery.upstream.evidence.results import (
    CheckerResult,
    CheckStatus,
    CommandRun,
    Commit,
    Evidence,
    ModelRow,
    RegressionKind,
    RegressionTest,
    SeriesStatus,
    Sibling,
    SignatureChange,
)

ISSUE = "https://github.com/huggingface/transformers/issues/41234"
COMMAND = "ckpt_surgery pr transformers --families clvp,zamba2 --group-by all --base main"
NASTY = "a ` b `` c ``` d\n````\n</details> <!-- gone --> | *x* _y_ [z](w) @someone #12 & <b>\n~~~\n# no heading"
MODELING = "src/transformers/models/{0}/modeling_{0}.py"
TEMPLATE = """\
# What is this?

<!--
Say it here.
# not a heading
-->

<!-- Leave out if there is none -->

Fixes # (issue)

## Rules

- [ ] I am no robot.

## Before you open it
- [x] A ticked box, with a [link](https://example.org#x).
  * [X] Nested
    1. [x] and deeper
> - [x] quoted
- [x](https://example.org) is a link
- the array [x] is no box

## Who reads it?

<!-- Name somebody, @ and all. -->
"""


def ready() -> Evidence:
    """Build a sound series of two commits, agreed on in an issue."""
    made = Evidence(
        group="all",
        branch="ckpt-surgery/all",
        base="0123456789abcdef0123456789abcdef01234567",
        base_name="main",
        status=SeriesStatus.NOT_READY,
        reasons=(),
        commits=(commit("clvp", "a" * 40), commit("zamba2", "b" * 40, regenerated=(MODELING.format("zamba2"),))),
        rows=tuple(rows("clvp", "ClvpEncoder") + rows("zamba2", "Zamba2ForCausalLM")),
        checks=(
            CheckerResult(
                "copies", CheckStatus.OK, CommandRun("python utils/checkers.py copies", 0, "all copies are alike")
            ),
            CheckerResult(
                "tests/models/clvp", CheckStatus.OK, CommandRun("python -m pytest tests/models/clvp", 0, "200 passed")
            ),
        ),
        signatures=(
            SignatureChange(
                path=MODELING.format("clvp"),
                line=41,
                class_name="ClvpEncoderLayer",
                before="hidden_states, past_key_values=None, encoder_hidden_states=None",
                after="hidden_states, encoder_hidden_states=None, past_key_values=None",
            ),
        ),
        unsafe=(f"CKPT005 in {MODELING.format('clvp')}: ClvpEncoderLayer.forward takes it behind past state",),
        regressions=(
            regression("clvp", RegressionKind.EXCEPTION_REMOVED),
            regression("zamba2", RegressionKind.COVERED),
        ),
        siblings=(
            Sibling("clvp", ("CKPT002",), (f"{MODELING.format('clvp')}:80",), True, "changed in this series"),
            Sibling("mllama", ("CKPT002", "CKPT003"), (f"{MODELING.format('mllama')}:7",), False, "not asked for"),
        ),
        versions={
            "ckpt_surgery": "0.1.0",
            "git": "2.43.0",
            "python": "3.11.9",
            "ruff": "0.14.10",
            "torch": "2.13.0",
            "transformers": "5.5.0.dev0",
        },
        command=f"{COMMAND} --coordination {ISSUE}",
        patches=("0001-clvp.patch", "0002-zamba2.patch"),
        notes=("A `# Copied from` comment had to go in *clvp*.",),
        coordination=ISSUE,
        rules={"CKPT003": "A tensor that carries gradient is passed by keyword.", "CKPT002": "An inline branch."},
    )
    return judged(made, (), applies=True)


def uncoordinated() -> Evidence:
    """Build the same without an issue."""
    return replace(ready(), coordination="", command=COMMAND)


def cautious() -> Evidence:
    """Build a ready series with limits: a checker that fails on the base too, a class that was sound before."""
    good = ready()
    old = CommandRun("python utils/checkers.py repo", 1, "a file is missing")
    well = [replace(row, before=(), faults_before=()) for row in rows("clvp", "ClvpDecoder")]
    made = replace(
        good,
        rows=(*good.rows, *well),
        checks=(
            *good.checks,
            CheckerResult("repo", CheckStatus.FAILED_BEFORE, old, old, "the base fails in the same way"),
        ),
    )
    return judged(made, (), applies=True)


def not_ready() -> Evidence:
    """Build a series in which something of every kind failed, with text that would break a page."""
    good = ready()
    broken = CommandRun("python -c 'import transformers.models.clvp'", 1, NASTY)
    old = "the base fails too, with another output"
    made = replace(
        good,
        commits=(
            replace(good.commits[0], imported=broken, fixes=(CommandRun("make fix-repo", 2, NASTY),)),
            good.commits[1],
        ),
        rows=(
            replace(good.rows[0], after=("recompute",), faults_after=("Expected `a|b`, saw *c*.",)),
            replace(good.rows[1], after=("values",), faults_after=("Expected `a|b`, saw *c*.",)),
            replace(good.rows[2], after=good.rows[2].before),
            replace(good.rows[3], problem="The step took longer than 60 s | and was ended."),
        ),
        checks=(
            CheckerResult(
                "inits", CheckStatus.OK, CommandRun("python utils/checkers.py inits", 0, "all of them are there")
            ),
            CheckerResult(
                "repo",
                CheckStatus.FAILED_BEFORE,
                CommandRun("make repo", 2, "new"),
                CommandRun("make repo", 2, "old"),
                old,
            ),
            CheckerResult(
                "copies",
                CheckStatus.FAILED,
                CommandRun("python utils/checkers.py copies", 1, NASTY),
                reason="it passes on the base",
            ),
            CheckerResult(
                "types",
                CheckStatus.NOT_RUN,
                reason="it needs *ty*, which the interpreter does not have: <b> | @someone",
            ),
        ),
        regressions=(
            RegressionTest("clvp", RegressionKind.NONE, reason="nothing in the suite runs this block"),
            RegressionTest(
                "zamba2",
                RegressionKind.NONE,
                before=CommandRun("python -m pytest x", 0, "1 passed"),
                reason="it passes on the base",
            ),
        ),
        notes=(NASTY,),
    )
    return judged(made, (), applies=True)


def unchecked() -> Evidence:
    """Build a series of which nothing could be run; its last commit changes only tests."""
    good = ready()
    tests = replace(commit("clvp", "c" * 40), files=("tests/models/clvp/test_modeling_clvp.py",), imported=None)
    made = replace(
        good,
        commits=(*good.commits, tests),
        patches=(*good.patches, "0003-tests.patch"),
        rows=tuple(replace(row, before=(), after=(), faults_before=(), problem="no torch") for row in good.rows),
        checks=(
            CheckerResult("upstream's checkers", CheckStatus.NOT_RUN, reason="the interpreter is too old"),
            CheckerResult(
                "tests/models/clvp",
                CheckStatus.NOT_RUN,
                CommandRun("python -m pytest tests/models/clvp", 4, "no xdist"),
                None,
                "-n",
            ),
        ),
        regressions=(
            RegressionTest("clvp", RegressionKind.NONE, reason="no torch"),
            RegressionTest("zamba2", RegressionKind.NONE, reason="no torch"),
        ),
    )
    return judged(made, (), applies=True)


def bare() -> Evidence:
    """Build a series of which hardly anything is known."""
    made = replace(
        unchecked(),
        signatures=(),
        unsafe=(),
        siblings=(),
        patches=(),
        notes=(),
        versions={},
        rules={},
        coordination="",
    )
    return judged(made, (), applies=True)


def every_kind() -> dict[str, Evidence]:
    """Build all of the above, by name."""
    return {made.__name__: made() for made in (ready, uncoordinated, cautious, not_ready, unchecked, bare)}


def large(families: int = 20) -> Evidence:
    """Build a series of many families, one class unchanged."""
    names = [f"family{number}" for number in range(families)]
    all_rows = [row for name in names for row in rows(name, f"{name.capitalize()}Model")]
    all_rows[-1] = replace(all_rows[-1], after=all_rows[-1].before, faults_after=all_rows[-1].faults_before)
    made = replace(
        ready(),
        commits=tuple(commit(name, f"{at:040x}") for at, name in enumerate(names)),
        rows=tuple(all_rows),
        checks=tuple(
            CheckerResult(f"tests/models/{name}", CheckStatus.OK, CommandRun(f"pytest tests/models/{name}", 0))
            for name in names
        ),
        regressions=tuple(regression(name, RegressionKind.COVERED) for name in names),
    )
    return judged(made, (), applies=True)


def odd() -> Evidence:
    """Build a series with rarer forms: differing modes, a test that replaces an override, another exit code."""
    good = ready()
    first, second, *others = good.rows
    clvp, zamba2 = good.regressions
    made = replace(
        good,
        rows=(replace(first, before=(), faults_before=()), second, *others[:1]),
        regressions=(
            replace(clvp, reason="removed: the skip of ClvpTest.test_x (tests/x.py)"),
            replace(zamba2, before=CommandRun("python -m pytest x", 5, "no tests ran")),
        ),
        siblings=tuple(replace(good.siblings[1], family=f"family{number}") for number in range(14)),
    )
    return judged(made, ("zamba2",), applies=True, lost=["clvp"], drifted=["a.py", "b.py"])


def commit(family: str, sha: str, regenerated: tuple[str, ...] = ()) -> Commit:
    """Make a commit on one family."""
    return Commit(
        sha=sha,
        subject=f"{family}: checkpoint | once",
        families=(family,),
        rules=("CKPT002", "CKPT003"),
        files=(MODELING.format(family),),
        imported=CommandRun(f"python -c 'import transformers.models.{family}'", 0),
        regenerated=regenerated,
        fixes=(CommandRun("python utils/checkers.py modular_conversion --fix", 0, "1 file"),) if regenerated else (),
    )


def rows(family: str, model: str) -> list[ModelRow]:
    """Make the rows of a class that never checkpointed and does now, in both modes."""
    fault = "expected every block to be recomputed once, saw none recomputed. A block is no layer. [CKPT001]"
    return [
        ModelRow(
            family, model, mode, ("recompute", "cost"), (), (fault,), (), kept_before=3 << 20, kept_after=200 << 10
        )
        for mode in MODES
    ]


def regression(family: str, kind: RegressionKind) -> RegressionTest:
    """Make a test that fails on the base and passes on the series."""
    path = f"tests/models/{family}/test_modeling_{family}.py"
    command = f"python -m pytest {path} -k gradient_checkpointing"
    return RegressionTest(
        family=family,
        kind=kind,
        paths=(path,),
        tests=(f"{path}::ModelTest::test_training_gradient_checkpointing",),
        before=CommandRun(command, 1, "1 failed"),
        after=CommandRun(command, 0, "1 passed"),
    )


def parsed(page: str) -> list[Token]:
    """Parse a page's blocks as GitHub does."""
    return MarkdownIt("commonmark").enable("table").parse(page)


def shown(inline: Token) -> str:
    """Render one line as a reader sees it."""
    return "".join(child.content for child in inline.children or [])


def tables(page: str) -> list[list[list[str]]]:
    """Read every table of a page as a reader sees it: its rows, the header first."""
    all_tables: list[list[list[str]]] = []
    tokens = parsed(page)
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            all_tables.append([])
        elif token.type == "tr_open":
            all_tables[-1].append([])
        elif token.type in ("th_open", "td_open"):
            all_tables[-1][-1].append(shown(tokens[at + 1]))
    return all_tables


def fences(page: str) -> list[str]:
    return [token.content for token in parsed(page) if token.type == "fence"]


def headings(page: str) -> list[str]:
    """Return a page's headings as written: `## Commits`."""
    tokens = parsed(page)
    return [
        f"{'#' * int(token.tag[1])} {shown(tokens[at + 1])}"
        for at, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def folds(page: str) -> dict[str, str]:
    """Return a page's folded parts by the line that opens each."""
    sections = re.findall(r"^<details>\n<summary>(.*?)</summary>$(.*?)^</details>$", page, re.DOTALL | re.MULTILINE)
    return {summary: body.strip() for summary, body in sections}
