"""Evidence as `ckpt_surgery pr` could have gathered it: made up, with every kind of outcome. Nothing is run here."""

from __future__ import annotations

from dataclasses import replace

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ckpt_surgery.upstream.results import (
    Check,
    Commit,
    Evidence,
    Ran,
    Regression,
    Row,
    Sibling,
    Signature,
)
from ckpt_surgery.verification.results import MODES

ISSUE = "https://github.com/huggingface/transformers/issues/41234"
NASTY = "a ` b `` c ``` d\n````\n</details> <!-- gone --> | *x* _y_ [z](w) @someone #12 & <b>\n~~~\n# no heading"
MODELING = "src/transformers/models/{0}/modeling_{0}.py"


def ready() -> Evidence:
    """A series of two commits in which all is well, agreed on in an issue."""
    return Evidence(
        group="inline-branch",
        branch="ckpt-surgery/inline-branch",
        base="0123456789abcdef0123456789abcdef01234567",
        base_name="main",
        status="ready",
        reasons=(),
        commits=(commit("clvp", "a" * 40), commit("zamba2", "b" * 40, regenerated=(MODELING.format("zamba2"),))),
        rows=tuple(rows("clvp", "ClvpEncoder") + rows("zamba2", "Zamba2ForCausalLM")),
        checks=(
            Check("copies", "ok", Ran("python utils/checkers.py copies", 0, "fine")),
            Check("typing", "not run", reason="ty is not installed."),
        ),
        signatures=(
            Signature(
                path=MODELING.format("clvp"),
                line=41,
                class_name="ClvpEncoderLayer",
                before="self, hidden_states, past_key_values=None, encoder_hidden_states=None",
                after="self, hidden_states, encoder_hidden_states=None, past_key_values=None",
                callers=(f"{MODELING.format('clvp')}:80", "tests/models/clvp/test_modeling_clvp.py:12"),
            ),
        ),
        unsafe=(f"CKPT005 in {MODELING.format('clvp')}: ClvpEncoderLayer.forward takes it behind past state",),
        regressions=(regression("clvp", "exception removed"), regression("zamba2", "covered")),
        siblings=(
            Sibling("clvp", ("CKPT002",), (f"{MODELING.format('clvp')}:80",), True, ""),
            Sibling(
                "mllama", ("CKPT002", "CKPT003"), (f"{MODELING.format('mllama')}:7",), False, "It was not asked for."
            ),
        ),
        versions={
            "ckpt_surgery": "0.1.0",
            "git": "2.43.0",
            "python": "3.11.9",
            "ruff": "0.14.10",
            "torch": "2.13.0",
            "transformers": "5.5.0.dev0",
        },
        command=f"ckpt_surgery pr --group inline-branch --coordination {ISSUE}",
        patches=("0001-clvp.patch", "0002-zamba2.patch"),
        notes=("A `# Copied from` comment had to go in *clvp*.",),
        coordination=ISSUE,
        rules={"CKPT003": "A tensor that carries gradient is passed by keyword.", "CKPT002": "An inline branch."},
    )


def uncoordinated() -> Evidence:
    """The same without an issue."""
    return replace(ready(), coordination="", command="ckpt_surgery pr --group inline-branch")


def not_ready() -> Evidence:
    """A series in which something of every kind went wrong, with text that would break a page."""
    good = ready()
    broken = Ran("python -c 'import transformers.models.clvp'", 1, NASTY)
    return replace(
        good,
        status="not ready",
        reasons=("The checker `copies` fails.", "ClvpEncoder is *worse* in reentrant mode: <b> | @someone."),
        commits=(replace(good.commits[0], imported=broken, fixes=(Ran("make fix-repo", 0, NASTY),)), good.commits[1]),
        rows=(
            replace(good.rows[0], after=("recompute",), faults_after=("Expected `a|b`, saw *c*.",)),
            replace(good.rows[1], after=("values",), faults_after=("Expected `a|b`, saw *c*.",)),
            replace(good.rows[2], after=good.rows[2].before),
            replace(good.rows[3], problem="The step took longer than 60 s | and was ended."),
        ),
        checks=(
            Check("ok_one", "ok", Ran("python utils/checkers.py ok_one", 0, "fine")),
            Check("old_one", "failed before too", Ran("make old", 2, "old"), Ran("make old", 2, "old"), "Not ours."),
            Check("copies", "failed", Ran("python utils/checkers.py copies", 1, NASTY), reason="Copies differ."),
            Check("typing", "not run", reason="ty is not installed."),
        ),
        regressions=(
            Regression("clvp", "none", reason="Nothing in the suite runs this block."),
            replace(good.regressions[1], kind="added", before=Ran("python -m pytest x", 0, "1 passed"), after=None),
        ),
        notes=(NASTY,),
    )


def unchecked() -> Evidence:
    """A series for which there was no interpreter, and so nothing that had to be run."""
    good = ready()
    return replace(
        good, status="unchecked", reasons=("No interpreter with torch was given.",), rows=(), checks=(), regressions=()
    )


def empty() -> Evidence:
    """A series without anything in it."""
    return replace(
        unchecked(),
        commits=(),
        signatures=(),
        siblings=(),
        patches=(),
        notes=(),
        versions={},
        rules={},
        coordination="",
    )


def every_kind() -> dict[str, Evidence]:
    """All of the above, by name."""
    return {made.__name__: made() for made in (ready, uncoordinated, not_ready, unchecked, empty)}


def large(families: int = 20) -> Evidence:
    """A series of many families, in which one class is as before."""
    names = [f"family{number}" for number in range(families)]
    found = [row for name in names for row in rows(name, f"{name.capitalize()}Model")]
    found[-1] = replace(found[-1], after=found[-1].before, faults_after=found[-1].faults_before)
    return replace(
        ready(), commits=tuple(commit(name, f"{at:040x}") for at, name in enumerate(names)), rows=tuple(found)
    )


def commit(family: str, sha: str, regenerated: tuple[str, ...] = ()) -> Commit:
    """One commit on one family."""
    return Commit(
        sha=sha,
        subject=f"{family}: checkpoint | once",
        families=(family,),
        rules=("CKPT002", "CKPT003"),
        files=(MODELING.format(family),),
        imported=Ran(f"python -c 'import transformers.models.{family}'", 0),
        regenerated=regenerated,
        fixes=(Ran("python utils/checkers.py modular_conversion --fix", 0, "1 file"),) if regenerated else (),
    )


def rows(family: str, model: str) -> list[Row]:
    """One class that never checkpointed and does now, in both modes."""
    fault = "expected every block to be recomputed once, saw none recomputed. A block is no layer. [CKPT001]"
    return [
        Row(family, model, mode, ("recompute", "cost"), (), (fault,), (), kept_before=3 << 20, kept_after=200 << 10)
        for mode in MODES
    ]


def regression(family: str, kind: str) -> Regression:
    """A test that fails on the base and passes on the series."""
    path = f"tests/models/{family}/test_modeling_{family}.py"
    command = f"python -m pytest {path} -k gradient_checkpointing"
    return Regression(
        family=family,
        kind="covered" if kind == "covered" else "exception removed",
        paths=(path,),
        tests=(f"{path}::ModelTest::test_training_gradient_checkpointing",),
        before=Ran(command, 1, "1 failed"),
        after=Ran(command, 0, "1 passed"),
    )


def parsed(page: str) -> list[Token]:
    """The page as GitHub would read its blocks."""
    return MarkdownIt("commonmark").enable("table").parse(page)


def shown(inline: Token) -> str:
    """One line as a reader sees it."""
    return "".join(child.content for child in inline.children or [])


def tables(page: str) -> list[list[list[str]]]:
    """Every table of a page as a reader sees it: its rows, the header first."""
    found: list[list[list[str]]] = []
    tokens = parsed(page)
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("th_open", "td_open"):
            found[-1][-1].append(shown(tokens[at + 1]))
    return found


def fences(page: str) -> list[str]:
    """What stands in the fenced blocks of a page."""
    return [token.content for token in parsed(page) if token.type == "fence"]


def headings(page: str) -> list[str]:
    """The headings of a page with their depth, as they are written: `## Commits`."""
    tokens = parsed(page)
    return [
        f"{'#' * int(token.tag[1])} {shown(tokens[at + 1])}"
        for at, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def turned(evidence: Evidence) -> Evidence:
    """The same evidence with its mappings the other way round."""
    versions, rules = (dict(reversed(list(known.items()))) for known in (evidence.versions, evidence.rules))
    return replace(evidence, versions=versions, rules=rules)
