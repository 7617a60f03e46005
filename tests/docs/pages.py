"""Faults of a page: unknown names, broken links, code blocks that do not work."""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

import ckpt_surgery
from ckpt_surgery.codemods import RULES
from ckpt_surgery.static.results import CheckResult
from tests.docs.checkout import CALL, FOO, MODELS, plant
from tests.docs.commands import ROOT, Command, command_faults, commands, options, ours, run
from tests.releases import CACHE_VARIABLE

CODES = {rule.code for rule in RULES} | {"CKPT0", "CKPT900"}
"""All rules, the code prefix in the example configuration, and the invented example rule."""
DOCUMENTS = ("body.md", "evidence.md", "siblings.md", "model_card.md", "pull_request.md")
"""Files that `ckpt_surgery pr` and `adopt` write."""


@dataclass(frozen=True)
class Block:
    """A fenced code block: its language and its text."""

    language: str
    text: str


def page_paths() -> list[str]:
    """List written pages and those generated from our source, by their path in the project.

    The pages in docs/coverage/ are reports of `verify`, and its tests compare them with the releases.
    """
    paths = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "coverage"]
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(names)]


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def fenced(text: str) -> list[Block]:
    """Find the code blocks of a page. A Python block with a title is a file or part of one, called a fragment."""
    blocks = re.findall(r"^(`{3,})([^\n]*)\n(.*?)^\1$", text, re.DOTALL | re.MULTILINE)
    return [Block("fragment" if info.startswith("python title=") else info, body) for _, info, body in blocks]


def prose(text: str) -> str:
    """Remove a page's code blocks."""
    return re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)


def prose_faults(text: str, path: str = "README.md") -> list[str]:
    """Find rules, options, files, links and variables that a page names and that do not exist."""
    faults = [f"no rule {code}" for code in re.findall(r"\bCKPT\d+\b", text) if code not in CODES]
    words = prose(text)
    faults += [
        f"no option {name}" for name in re.findall(r"(?<![\w-])--[a-z][a-z\d-]*", words) if name not in options()
    ]
    names = re.findall(r"`([^`\n]+)`", words)
    files = [name for name in names if re.fullmatch(r"(?!out/)\w+/[\w./-]*|[\w./-]+\.(py|toml|yaml|md)", name)]
    faults += [f"no file {name}" for name in files if name not in DOCUMENTS and not (ROOT / name).exists()]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", words) if not link.startswith("https://")]
    faults += [f"no target {link}" for link in links if not leads_somewhere(link, path)]
    faults += [f"nothing says what is in {link}" for link in re.findall(r"!\[\s*\]\(([^)]+)\)", words)]
    faults += [f"nothing reads {name}" for name in re.findall(r"\bCKPT_SURGERY_\w+", text) if name != CACHE_VARIABLE]
    return faults


def leads_somewhere(link: str, path: str) -> bool:
    """Tell whether the file that a page links to exists, and in it the heading."""
    name, _, anchor = link.partition("#")
    target = (ROOT / path).parent / name if name else ROOT / path
    if not target.is_file() or not anchor:
        return target.is_file()
    headings = re.findall(r"^#+ (.*)$", prose(target.read_text(encoding="utf-8")), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def block_faults(text: str) -> list[str]:
    return [fault for block in fenced(text) for fault in faults_of(block)]


@cache
def faults_of(block: Block) -> tuple[str, ...]:
    """Describe the faults of one code block; the same block on two pages runs once."""
    if block.language not in CHECKERS:
        return (f"what is {block.language}?",)
    plant()
    return tuple(CHECKERS[block.language](block.text))


def fail_for(faults: Iterable[str]) -> None:
    """Fail a test with these faults as they are: pytest would cut them short in a comparison of lists."""
    if text := "\n".join(faults):
        pytest.fail(text, pytrace=False)


def console_faults(text: str) -> list[str]:
    faults = [] if text.startswith("$ ") else [f"no command: {text}"]
    return faults + [fault for command in commands(text) for fault in command_faults(command)]


def python_faults(text: str) -> list[str]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(text, "a page", "exec"), {})
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return [] if printed.getvalue() else ["the Python example prints nothing"]


def fragment_faults(text: str) -> list[str]:
    """Parse a rule's example: a few lines of a model or a script."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return [f"the example does not parse: {error}"]
    return []


def suppression_faults(text: str) -> list[str]:
    """Put a commented line in place of the same line without comment: one finding has to go."""
    file = Path(MODELS) / "foo/modeling_foo.py"
    before = checked(file)
    file.write_text(FOO.replace(CALL, text.strip()))
    after = checked(file)
    fewer = len(before.findings) - len(after.findings)
    return [] if (fewer, after.suppressed, after.problems) == (1, 1, ()) else [f"takes out {fewer} findings: {text}"]


def checked(file: Path) -> CheckResult:
    return ckpt_surgery.check([file])


def toml_faults(text: str) -> list[str]:
    Path("pyproject.toml").write_text(text)
    try:
        code, printed = ours("check", MODELS)
    finally:
        Path("pyproject.toml").unlink()
    return [printed] if code == 2 or "ckpt_surgery" not in tomllib.loads(text)["tool"] else []


def yaml_faults(text: str) -> list[str]:
    document = yaml.safe_load(text)
    existing = {hook["id"] for hook in yaml.safe_load(read(".pre-commit-hooks.yaml"))}
    hooks = [hook["id"] for repository in document.get("repos", ()) for hook in repository["hooks"]]
    steps = [step for job in document.get("jobs", {}).values() for step in job["steps"]]
    faults = [] if hooks or steps else ["neither hooks nor steps"]
    faults += [f"no hook {hook}" for hook in hooks if hook not in existing]
    inputs = yaml.safe_load(read("action.yml"))["inputs"]
    action = [step for step in steps if step.get("uses", "").startswith("OWNER/REPOSITORY@")]
    faults += [f"no input {name}" for step in action for name in step.get("with", {}) if name not in inputs]
    lines = [step["run"] for step in steps if "run" in step]
    faults += [fault for line in lines for fault in command_faults(Command(line))]
    written = {name for line in lines if line.startswith("ckpt_surgery ") for name in run(line).changed}
    uploads = [step["with"]["sarif_file"] for step in steps if "sarif_file" in step.get("with", {})]
    return faults + [f"no step writes {name}" for name in uploads if name not in written]


def session_faults(text: str) -> list[str]:
    """Run an interpreter session and compare its output."""
    examples = doctest.DocTestParser().get_doctest(text, {}, "a page", None, None)
    printed = io.StringIO()
    doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(examples, out=printed.write)
    return [printed.getvalue()] if printed.getvalue() or not examples.examples else []


def drawing_faults(text: str) -> list[str]:
    """Accept a drawing or plain text if nothing in it can run."""
    return [] if text.strip() else ["an empty block"]


CHECKERS: dict[str, Callable[[str], list[str]]] = {
    "console": console_faults,
    "fragment": fragment_faults,
    "mermaid": drawing_faults,
    "py": suppression_faults,
    "pycon": session_faults,
    "python": python_faults,
    "text": drawing_faults,
    "toml": toml_faults,
    "yaml": yaml_faults,
}
