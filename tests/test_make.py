"""The targets of `make` and the sessions of nox exist and are explained."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
NOXFILE = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
SESSIONS = {node.name for node in NOXFILE.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
NEED_TORCH = {"torch", "transformers", "accelerate", "peft"}


def constant(name: str) -> ast.expr:
    """Read the noxfile's value of a name, or of an attribute such as `nox.options.sessions`."""
    return next(
        node.value
        for node in NOXFILE.body
        if isinstance(node, ast.Assign) and any(ast.unparse(to) == name for to in node.targets)
    )


def requirements(extra: str) -> set[str]:
    """Collect the distributions that an extra of the project asks for, through other extras too."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names: set[str] = set()
    for requirement in extras[extra]:
        inner = re.match(r"ckpt-surgery\[(.*)\]", requirement)
        names |= requirements(inner[1]) if inner else {re.split(r"[^\w-]", requirement)[0]}
    return names


def session_commands(noxfile: ast.Module) -> Iterator[tuple[str, ...]]:
    """Yield the words that are written out in the commands of all sessions."""
    for node in ast.walk(noxfile):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "session.run":
            yield tuple(str(each.value) for each in node.args if isinstance(each, ast.Constant))


def build_faults(command: str) -> list[str]:
    """Say why a command that builds the site lets a warning pass, such as one of a link that leads nowhere."""
    words = command.split()
    if "mkdocs" not in words or "build" not in words:
        return []
    faults = [] if {"-s", "--strict"} & {*words} else ["a warning is no error without --strict"]
    hidden = [f"{word} hides the warnings that --strict counts" for word in words if word in ("-q", "--quiet")]
    return faults + hidden


def make(*arguments: str) -> str:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_help_explains_every_target() -> None:
    targets = re.findall(r"^(\w+):.*## ", MAKEFILE, re.MULTILINE)
    shown = re.findall(r"^make (\w+) ", make("help"), re.MULTILINE)
    assert {"demo", "check", "test", "clean"} <= set(targets)
    assert sorted(shown) == sorted(set(targets) - {"help"})
    assert re.search(r"^\.DEFAULT_GOAL := (\w+)$", MAKEFILE, re.MULTILINE)[1] == "help"  # type: ignore[index]


@pytest.mark.parametrize(
    ("target", "sessions"),
    [
        ("check", {"lint", "types", "static"}),
        ("cases", {"cases"}),
        ("test", set()),
    ],
)
def test_make_runs_sessions_that_there_are(target: str, sessions: set[str]) -> None:
    (command,) = (line for line in make("--dry-run", target).splitlines() if "-m nox" in line)
    named = set(command.partition("--session")[2].split())
    assert named == sessions
    assert named <= SESSIONS


def test_make_test_runs_everything() -> None:
    # `static` tests what tests_5 tests as well
    assert set(ast.literal_eval(constant("nox.options.sessions"))) >= {"lint", "types", "tests_5", "tests_4"}


def test_a_warning_of_the_site_fails_its_session() -> None:
    built = [" ".join(words) for words in session_commands(NOXFILE) if "mkdocs" in words]
    assert built
    assert [fault for command in built for fault in build_faults(command)] == []


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("mkdocs build", "a warning is no error without --strict"),
        ("mkdocs build --strict --quiet", "--quiet hides the warnings that --strict counts"),
        ("mkdocs -q build -s", "-q hides the warnings that --strict counts"),
    ],
)
def test_a_build_that_lets_warnings_pass_is_seen(command: str, fault: str) -> None:
    assert build_faults(command) == [fault]
    assert build_faults("mkdocs build -s") == []


def test_what_make_check_tests_is_there() -> None:
    paths = eval(ast.unparse(constant("STATIC_TESTS")))
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert {"tests/static", "tests/codemods", "tests/test_packaging.py"} <= set(paths)


def loads_transformers(code: str) -> bool:
    """Tell whether running this loads a module of transformers."""
    told = f"{code}\nimport sys; sys.exit(any(name.startswith('transformers.') for name in sys.modules))"
    return (
        subprocess.run([sys.executable, "-c", told], cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode != 0
    )


@pytest.mark.torch
def test_what_runs_with_one_release_of_transformers_imports_none() -> None:
    paths = ast.literal_eval(constant("TORCH_ALONE"))
    files = [
        file for path in paths for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).glob("*.py"))
    ]
    assert len(files) > len(paths)
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    assert not loads_transformers(f"import pytest, {', '.join(modules)}")
    assert loads_transformers("import tests.zoo.tiny_models")


def test_the_static_half_is_tested_without_torch() -> None:
    assert requirements("static-test").isdisjoint(NEED_TORCH)
    assert requirements("test") >= {"peft", "pytest"}, "extras inside extras are followed"
