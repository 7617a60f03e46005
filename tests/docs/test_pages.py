"""The pages are true: their commands and examples run, and the names and links in them exist.

Everything runs in a small transformers checkout. The checker also runs on broken snippets.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import ckpt_surgery
from ckpt_surgery.cli.config import Config, OutputFormat
from ckpt_surgery.cli.verify import VerifyFormat
from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.commands import TargetedCommand
from ckpt_surgery.codemods.edits import rewrite
from ckpt_surgery.model_patches.release_names import LAYER_CLASS
from ckpt_surgery.static import check as analyze
from ckpt_surgery.static import commands as libcst_commands
from tests.codemods.rules import test_new_rule as made_up
from tests.docs.checkout import CALL, MODELS, plant
from tests.docs.commands import ROOT, difference, options, shared_pool
from tests.docs.pages import (
    CHECKERS,
    block_faults,
    fail_for,
    fenced,
    fragment_faults,
    page_paths,
    prose_faults,
    read,
    session_faults,
)
from tests.docs.pasted import PASTED
from tests.model_patches.test_new_family import FAMILY as MADE_UP_FAMILY
from tests.releases import CACHE_VARIABLE

PAGES = page_paths()
FRAGMENTS = [page for page in PAGES if page.startswith("docs/rules/CKPT")]
RUN = [page for page in PAGES if page not in (*FRAGMENTS, *PASTED) and fenced(read(page))]
SESSIONS = [page for page in PAGES if any(block.language == "pycon" for block in fenced(read(page)))]
SOURCE = "docs/how-to/source.md"
VERIFY = "docs/how-to/verify.md"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make one folder for all pages, where one fork server runs their models."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch, shared_pool():
        patch.setenv(CACHE_VARIABLE, str(folder / "cache"))
        (folder / "checkout").mkdir()
        yield folder / "checkout"


@pytest.fixture(autouse=True)
def place(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a small checkout, which is also "the installed transformers"."""
    monkeypatch.setattr(analyze, "installed_models", lambda: Path(MODELS))
    monkeypatch.chdir(workshop)
    for left in workshop.iterdir():  # the fork server works in the folder: it stays the same one
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    plant()


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_and_links_to_exists(page: str) -> None:
    fail_for(prose_faults(read(page), page))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_commands_and_examples_of_a_page_work(page: str) -> None:
    fail_for(block_faults(read(page)))


@pytest.mark.parametrize("page", FRAGMENTS)
def test_the_example_of_a_rule_parses(page: str) -> None:
    blocks = fenced(read(page))
    assert {block.language for block in blocks} == {"python"}
    fail_for(fault for block in blocks for fault in fragment_faults(block.text))


@pytest.mark.both
@pytest.mark.parametrize("page", SESSIONS)
def test_the_session_prints_what_a_page_shows(page: str) -> None:
    sessions = [block.text for block in fenced(read(page)) if block.language == "pycon"]
    assert len(sessions) == 1, "a page has one pycon session: its lines build on one another"
    fail_for(session_faults(sessions[0]))


@pytest.mark.torch
def test_a_session_that_prints_something_else_is_seen() -> None:
    assert session_faults(">>> 1 + 1\n2\n") == []
    assert session_faults(">>> 1 + 1\n3\n")
    assert session_faults("no session")


def test_there_are_pages_of_every_kind() -> None:
    assert len(FRAGMENTS) == len(RULES)
    assert {SOURCE, VERIFY} <= set(RUN)
    assert "README.md" in SESSIONS


@pytest.mark.parametrize(
    ("language", "text", "fault"),
    [
        ("console", "$ ckpt_surgery chekc src\n", "No such command"),
        ("console", "$ ckpt_surgery check --selct CKPT003 src\n", "No such option"),
        ("console", "$ ckpt_surgery check src --select CKPT03\n", "no rule has the code"),
        ("console", "$ ckpt_surgery check nowhere\n", "no such file or folder"),
        ("console", "$ ckpt_surgery rule CKPT099\n", "no rule CKPT099"),
        ("console", f"$ ckpt_surgery check {MODELS}\nfoo.py\n...\n", "Checked 1 file"),
        ("console", f"$ ckpt_surgery check {MODELS}\n{MODELS}/foo/modeling_foo.py\n", "Checked 1 file"),
        ("console", "$ ckpt_surgery verify --all --shrad 1/4\n", "No such option"),
        ("console", "$ make dmeo\n", "no target dmeo"),
        ("console", "$ .venv/bin/nox -s dosc\n", "no session dosc"),
        ("console", "$ .venv/bin/nox -s docs -- tests/nothing\n", "no file tests/nothing"),
        ("console", "$ python -m docs.generate --chekc\n", "usage: python -m docs.generate"),
        ("console", "$ python -m docs.publish\n", "not known"),
        ("console", "$ torchrun --nproc-per-node 2 examples/one_gpu.py\n", "not known"),
        ("console", "$ torchrun --nproc-per-nodes 2 examples/several_gpus.py\n", "unrecognized arguments"),
        ("console", "$ python -m pip install .[cuda]\n", "install .[cuda]"),
        ("console", "$ python benchmarks/step_costs.py\n", "not known"),
        ("console", "$ python -m benchmarks.reply 4.52.4 4.53.0\n", "No module named"),
        ("console", "$ python -m benchmarks.replay 1.0.0 4.53.0\n", "invalid choice"),
        ("console", "$ python -m benchmarks.replay 4.52.4 4.53.0 --jsn x\n", "usage: replay"),
        ("console", f"$ python -m libcst.tool codemod -x ckpt_surgery.static.commands.Fix {MODELS}\n", "Fix"),
        ("console", "$ ckpt-surgeon check\n", "not known"),
        ("console", "ckpt_surgery check\n", "no command"),
        ("python", "from ckpt_surgery import chek\n", "ImportError"),
        ("python", f"import ckpt_surgery\nprint(ckpt_surgery.apply(['{MODELS}'], wirte=False))\n", "TypeError"),
        ("python", f"import ckpt_surgery\nckpt_surgery.check(['{MODELS}'])\n", "prints nothing"),
        ("py", f"{CALL}  # ckpt: ignore[CKPT004] the wrong one\n", "takes out 0"),
        ("py", f"{CALL}  # ckpt: ignroe[CKPT003] misspelt\n", "takes out 0"),
        ("toml", '[tool.ckpt_surgery]\nselct = ["CKPT0"]\n', "did you mean select"),
        ("toml", '[tool.ckpt_surgery]\nselect = ["CKPT2"]\n', "no rule has the code"),
        ("toml", "[tool.other]\n", "Checked"),
        ("yaml", "repos: [{repo: A, rev: B, hooks: [{id: ckpt-surgery-fix}]}]\n", "no hook ckpt-surgery-fix"),
        ("yaml", "jobs: {a: {steps: [{run: ckpt_surgery check src --format json}]}}\n", "No such option"),
        ("yaml", "jobs: {a: {steps: [{uses: x, with: {sarif_file: a.sarif}}]}}\n", "no step writes a.sarif"),
        ("yaml", "jobs: {a: {steps: [{uses: OWNER/REPOSITORY@COMMIT, with: {path: a}}]}}\n", "no input path"),
        ("yaml", "other: 1\n", "neither hooks nor steps"),
        ("mermaid", "\n", "empty"),
        ("bash", "ckpt_surgery check\n", "what is bash?"),
    ],
)
def test_a_broken_code_block_is_seen(language: str, text: str, fault: str) -> None:
    page = f"Words.\n\n```{language}\n{text}```\n"
    assert fault in "\n".join([*prose_faults(page), *block_faults(page)])


def test_a_failure_names_every_fault_whole() -> None:
    fail_for([])
    with pytest.raises(pytest.fail.Exception, match=r"^a{999}\nno file b$"):
        fail_for(["a" * 999, "no file b"])


def test_the_difference_from_a_page_is_short() -> None:
    lines = [f"module_{i} of {i} layers" for i in range(40)]
    printed = "".join(f"{line}\n" for line in ["2 files in 1.5 s", *lines, "40 modules"])
    assert difference(("2 files in 0.1 s", "...", "41 modules"), printed).splitlines() == [
        "- 41 modules",
        "+ 40 modules",
    ]
    assert difference(("3 files in 0.1 s", *lines, "40 modules"), printed) == "- 3 files in 0.0 s\n+ 2 files in 0.0 s"
    assert difference(("2 files in 0.1 s", "40 modules"), printed).splitlines()[-1] == "+ (30 more lines)"
    assert difference(("...",), "") == ""


def test_every_kind_of_block_is_explained_to_who_adds_a_page() -> None:
    section = read("CONTRIBUTING.md").partition("## Add a page")[2].partition("\n## ")[0]
    table = section.partition("| block | what the tests do |")[2].partition("\n\n")[0]
    kinds = set(re.findall(r"`(\w+)(?: title=[^`]*)?`", "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE))))
    assert kinds == CHECKERS.keys() - {"fragment"}
    assert "`python title=" in table
    navigation = read("mkdocs.yml").partition("\nnav:\n")[2].partition("\n\n")[0]
    groups = re.findall(r"^  - (\w+):", navigation, re.MULTILINE)
    assert groups
    assert [group for group in groups if f"**{group}**" not in section] == []


def test_an_example_that_does_not_parse_is_seen() -> None:
    assert fragment_faults("if rank == 0:\n")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("It finds CKPT099.", "no rule CKPT099"),
        ("Use `check --stats`.", "no option --stats"),
        ("See `benchmarks/slow.py`.", "no file benchmarks/slow.py"),
        ("It lies in `model_patch/`.", "no file model_patch/"),
        ("See [the guide](docs/guide.md).", "no target docs/guide.md"),
        ("See [rules](docs/rules/index.md#safe).", "no target docs/rules/index.md#safe"),
        ("See [below](#no-such-heading).", "no target #no-such-heading"),
        ("![Memory](docs/pictures/memory.svg)", "no target docs/pictures/memory.svg"),
        ("![ ](docs/pictures/verify.png)", "nothing says what is in docs/pictures/verify.png"),
        ("Set `CKPT_SURGERY_JOBS`.", "nothing reads CKPT_SURGERY_JOBS"),
    ],
)
def test_a_name_that_does_not_exist_is_seen(text: str, fault: str) -> None:
    assert prose_faults(text) == [fault]


def test_a_link_is_relative_to_its_page() -> None:
    assert prose_faults("[rules](rules/index.md)", "docs/index.md") == []
    assert prose_faults("[rules](rules/index.md)", "README.md") == ["no target rules/index.md"]


def test_every_picture_is_on_a_page() -> None:
    shown = {Path(link).name for page in PAGES for link in re.findall(r"!\[[^]]+\]\(([^)]+)\)", read(page))}
    pictures = {path.name for path in (ROOT / "docs/pictures").iterdir() if path.suffix != ".json"}
    assert pictures - shown == set()


def test_the_instructions_name_the_tested_rule_fact_and_family() -> None:
    blocks = fenced(read("CONTRIBUTING.md"))
    fragments = [block.text for block in blocks if block.language == "fragment"]
    assert fragments == [made_up.RULE, made_up.FACT, MADE_UP_FAMILY]
    assert {made_up.CASE, made_up.ASKING} <= {block.text for block in blocks}


def test_the_changelog_has_an_entry_for_this_version() -> None:
    assert f"## [{ckpt_surgery.__version__}]" in read("CHANGELOG.md")


def test_every_option_key_and_format_is_documented() -> None:
    documented = set(re.findall(r"(?<![\w-])--[a-z][a-z\d-]*", "".join(map(read, PAGES)))) | {"--help", "--version"}
    assert {name for name in options() if not name.startswith("--no-")} - documented == set()
    (table,) = [block.text for block in fenced(read(SOURCE)) if block.language == "toml"]
    keys = {field.name.replace("_", "-") for field in fields(Config)} - {"path"}
    assert set(tomllib.loads(table)["tool"]["ckpt_surgery"]) == keys
    sentences = [re.findall(r"`--output-format` is (.*?)[.(]", read(page)) for page in (SOURCE, VERIFY)]
    formats = [set(re.findall(r"`(\w+)`", sentence)) for (sentence,) in sentences]
    assert formats == [set(OutputFormat), set(VerifyFormat)]


def test_the_libcst_commands_are_those_that_exist() -> None:
    (section,) = re.findall(r"^## As libcst codemods\n(.*)", read(SOURCE), re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`([A-Z]\w+)`", section))
    targeted = {command.__name__ for command in TargetedCommand.__subclasses__()}
    assert {name for name in named if name.endswith("Command")} == targeted
    transformers = {name for name in named if hasattr(rewrite, name)}
    assert len(transformers) >= len(targeted)
    decided = {libcst_commands.RepairAll.__name__, *libcst_commands.COMMANDS}
    assert len(named & decided) > 2
    assert named - targeted - transformers - {LAYER_CLASS} <= decided


def test_the_figures_of_the_front_page_are_those_of_the_coverage_page() -> None:
    coverage = read("docs/coverage/5.23.0.md")
    before, _, after = coverage.partition("| after wrap_blocks |")
    (failed, ok), (still,) = (
        [int(re.findall(rf"^\| {row} \| ([\d,]+) ", text, re.MULTILINE)[0].replace(",", "")) for row in rows]
        for text, rows in ((before, ("failed", "ok")), (after, ("failed",)))
    )
    front = read("README.md")
    assert f"{failed + ok:,} model classes of transformers 5.23.0" in front
    assert f"[{failed} fail]" in front
    assert still == 0


def test_the_front_page_is_one_screen() -> None:
    assert len(read("README.md").splitlines()) <= 120


def test_the_versions_that_are_installed_are_those_that_are_named() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    front = read("README.md")
    for pin in re.findall(r"`(torch==[\d.]+)`", front):
        assert f'"{pin}"' in noxfile
    (versions,) = re.findall(r"once with transformers ([\d.]+) and once with ([\d.]+)\. ", front.replace("\n", " "))
    assert set(versions) == set(re.findall(r"transformers==([\d.]+)", noxfile))
