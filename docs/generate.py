"""Write the generated pages: one for each rule, the reference of the commands, the configuration and the names, and
the tables and coverage pages made from recorded figures.

`python -m docs.generate` writes them; with `--check` it only says whether they are up to date, and exits with 1 if
not. Neither torch nor transformers is needed.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import typer

import ckpt_surgery
from benchmarks import (
    guard_survey,
    kept_bytes,
    long_context,
    long_context_cards,
    policies,
    release_table,
    stacks,
    versions,
    wild,
)
from benchmarks.faults import report as faults_report
from ckpt_surgery.cli import config
from ckpt_surgery.cli.main import app
from ckpt_surgery.codemods import RULES, Rule
from ckpt_surgery.codemods.finding import RepairKind, Subject
from ckpt_surgery.text import code, markdown_table

DOCS = Path(__file__).parent
STUB = Path(ckpt_surgery.__file__).with_suffix(".pyi")
REPAIRED = {
    RepairKind.SAFE: "yes, where it is safe",
    RepairKind.UNSAFE: "with `--unsafe`",
    RepairKind.NONE: "by hand",
}
RULES_INDEX = """\
{notice}

# Rules

`ckpt_surgery rule CKPT003` prints a rule in the terminal. A finding says `unsafe` where the repair of a rule that is
usually safe is not.

## Models

{models}

## Training scripts

{scripts}
"""
COMMANDS = """\
{notice}

# Commands

`ckpt_surgery`, `ckpt-surgery` and `python -m ckpt_surgery` are the same command. `ckpt_surgery --version` prints its
version, and `ckpt_surgery --version --all` the versions of everything that a bug report needs.

{sections}"""
CONFIGURATION = """\
{notice}

# Configuration

`check` and `apply` read the table `[tool.ckpt_surgery]` of the nearest pyproject.toml that has it, starting at the
first path and going up. `verify` and `pr` read only `jobs` from it, starting at the working folder. The command line
wins. There is [an example](../how-to/source.md#configure).

{table}
"""
PYTHON = """\
{notice}

# Python

Import the names of the first three sections from `ckpt_surgery`, and the others from the package in the heading.

{sections}"""
CARDS_BEGIN = "<!-- Written by `python -m docs.generate` from coverage/long_context_cards.json. -->"
CARDS_END = "<!-- The end of the table. -->"
SURVEYS = (
    faults_report,
    guard_survey,
    kept_bytes,
    long_context,
    policies,
    release_table,
    stacks,
    versions,
    wild,
)
"""Surveys whose pages are made from the json beside them."""
PACKAGES = ("distributed", "testing", "tiny")
"""Packages whose own `__all__` the Python reference documents."""


def pages() -> dict[str, str]:
    """Return every generated page by its path below docs/."""
    written = {f"rules/{rule.code}.md": rule_page(rule) for rule in RULES}
    return written | {
        "rules/index.md": rules_index(),
        "reference/cli.md": cli_page(),
        "reference/config.md": config_page(),
        "reference/python.md": python_page(),
        "how-to/long-context.md": with_cards((DOCS / "how-to" / "long-context.md").read_text(encoding="utf-8")),
        **{f"coverage/{survey.PAGE.name}.md": survey.PAGE.text() for survey in SURVEYS},
    }


def with_cards(page: str) -> str:
    """Insert the latest predicted table of cards into the page of `long_context`, which is written by hand."""
    head, rest = page.split(CARDS_BEGIN)
    _, tail = rest.split(CARDS_END)
    table = long_context_cards.cards_table(long_context_cards.read_cards())
    return f"{head}{CARDS_BEGIN}\n\n{table}\n\n{CARDS_END}{tail}"


def notice(source: str) -> str:
    """Return the comment at the top of a generated page."""
    return f"<!-- Written by `python -m docs.generate`: edit {source} instead. -->"


def rules_index() -> str:
    """Return the page with the tables of all rules."""
    models, scripts = (rules_table([rule for rule in RULES if rule.subject is subject]) for subject in Subject)
    return RULES_INDEX.format(notice=notice("the docstrings in codemods/rules/"), models=models, scripts=scripts)


def rules_table(rules: Iterable[Rule]) -> str:
    """Return a table with the code and name, summary and repair of each rule."""
    rows = (
        [f"[{rule.code}]({rule.code}.md) {rule.name.replace('_', ' ')}", rule.summary, REPAIRED[rule.repair]]
        for rule in rules
    )
    return markdown_table(["rule", "finds", "repaired"], rows)


def rule_page(rule: Rule) -> str:
    """Return the page of one rule: its docstring."""
    source = notice(f"the docstring of codemods/rules/{rule.name}.py")
    return f"{source}\n\n# {rule.code}: {rule.name.replace('_', ' ')}\n\n{rule.documentation.strip()}\n"


def cli_page() -> str:
    """Return the page of all commands, with their arguments and options."""
    root: Any = typer.main.get_command(app)
    sections = [command_section(name, command) for name, command in root.commands.items()]
    return COMMANDS.format(notice=notice("ckpt_surgery/cli/"), sections="\n".join(sections))


def command_section(name: str, command: Any) -> str:
    """Return the section of one command, as its `--help` describes it; `command` is typer's."""
    context = command.context_class(command, info_name=name)
    usage = " ".join(["ckpt_surgery", name, *command.collect_usage_pieces(context)])
    groups: dict[str, list[list[str]]] = {"": []}  # those in none come first, as in the help
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:  # it is hidden
            continue
        names, text = record
        group = getattr(parameter, "rich_help_panel", None) or ""
        row = [option_cell(names) if parameter.param_type_name == "option" else code(parameter.metavar), text]
        groups.setdefault(group, []).append(row)
    rows = [row for group, rows in groups.items() for row in ([[f"**{group}**", ""]] if group else []) + rows]
    table = markdown_table(["argument or option", "meaning"], rows)
    return f"## {name}\n\n```text\n{usage}\n```\n\n{inspect.cleandoc(command.help)}\n\n{table}\n"


def option_cell(names: str) -> str:
    """Format an option for a table, `--dtype [bf16|fp16]` with its choices as separate code, without pipes."""
    option, _, choices = names.partition(" [")
    if "|" not in choices:
        return code(names)
    return f"{code(option)} {', '.join(map(code, choices.removesuffix(']').split('|')))}"


def config_page() -> str:
    """Return the page of all keys of `[tool.ckpt_surgery]`, from the fields of `Config`."""
    meanings = attribute_docstrings(config.Config)
    rows = [
        [code(field.name.replace("_", "-")), type_in_words(field), default_of(field), meanings[field.name]]
        for field in fields(config.Config)
        if field.name != "path"
    ]
    table = markdown_table(["key", "type", "default", "meaning"], rows)
    return CONFIGURATION.format(notice=notice("ckpt_surgery/cli/config.py"), table=table)


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the strings below the attributes of a class, by attribute."""
    (definition,) = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    docstrings = {}
    for attribute, below in zip(definition.body, definition.body[1:], strict=False):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                docstrings[name] = " ".join(text.split())
    return docstrings


def type_in_words(field: Field[Any]) -> str:
    """Return the type of a key in TOML's words."""
    return {
        "tuple[str, ...]": "list of strings",
        "bool": "boolean",
        "int | None": "integer",
        "Path | None": "path",
        "OutputFormat": ", ".join(map(code, config.OutputFormat)),
        "Mapping[str, tuple[str, ...]]": "table of lists",
    }[str(field.type)]


def default_of(field: Field[Any]) -> str:
    """Return the default of a key as TOML writes it."""
    match field.default:
        case bool(value):
            return code(str(value).lower())
        case str(value):
            return code(f'"{value}"')
        case ():
            return code("[]")
        case None:
            return "one for each core" if field.name == "jobs" else "none"
    return code("{}")


def python_page() -> str:
    """Return the page of public names by kind; mkdocstrings reads their docstrings when the site is built."""
    homes = re.findall(r"^from (\S+) import (\w+) as \2$", STUB.read_text(encoding="utf-8"), re.MULTILINE)
    public = [f"{home}.{name}" for home, name in homes if not name.startswith("_")]
    errors = [path for path in public if path.startswith("ckpt_surgery.errors.")]
    functions = [path for path in public if path.rpartition(".")[2].islower()]
    sections = {"Functions": functions, "Results": [path for path in public if path not in {*errors, *functions}]}
    sections["Errors"] = errors
    for package in PACKAGES:
        sections[f"ckpt_surgery.{package}"] = [path for path in exported(package) if path not in public]
    listed = (f"## {title}\n\n" + "\n".join(f"::: {path}\n" for path in paths) for title, paths in sections.items())
    return PYTHON.format(notice=notice("ckpt_surgery/__init__.pyi"), sections="\n".join(listed))


def exported(package: str) -> Iterator[str]:
    """Yield the full names of what a package lists in `__all__`, at their definitions, without importing it."""
    module = f"ckpt_surgery.{package}"
    tree = ast.parse((STUB.parent / package / "__init__.py").read_text(encoding="utf-8"))
    homes = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ckpt_surgery.")
        for alias in node.names
    }
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List(names)):
                yield from (f"{homes.get(name, module)}.{name}" for name in map(ast.literal_eval, names))


def differences() -> list[str]:
    """List the generated pages that are out of date, and rule pages without a rule."""
    expected = pages()
    wrong = [name for name, text in expected.items() if not (DOCS / name).is_file() or _text(name) != text]
    return sorted(wrong + [name for name in _rule_pages() if name not in expected])


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _rule_pages() -> list[str]:
    return [path.relative_to(DOCS).as_posix() for path in (DOCS / "rules").glob("*.md")]


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    if parser.parse_args().check:
        wrong = differences()
        for name in wrong:
            print(f"docs/{name} is out of date: run python -m docs.generate")
        return int(bool(wrong))
    expected = pages()
    for name in _rule_pages():
        if name not in expected:
            (DOCS / name).unlink()
    for name, text in expected.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
    print(f"{len(expected)} pages written.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
