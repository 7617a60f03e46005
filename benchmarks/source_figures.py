"""How dense the source is: lines, definitions, functions and docstrings of the project and of packages beside it.

`make figures` prints the table of docs/architecture.md; packages named as arguments are read where they are installed.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "product": ("ckpt_surgery", "codemods", "model_patches"),
    "tests": ("tests",),
    "benchmarks": ("benchmarks",),
    "cases of faults": ("benchmarks/faults/cases",),
}
NO_VERBS = {
    "a", "all", "an", "and", "any", "as", "at", "by", "each", "every", "for", "from", "how", "if", "in", "its", "no",
    "of", "on", "one", "only", "other", "out", "some", "such", "than", "that", "the", "their", "them", "these",
    "this", "those", "to", "two", "what", "when", "where", "whether", "which", "while", "who", "whose", "with",
}  # fmt: skip
"""First words of sentences that begin with no verb."""


def parsed(text: str) -> ast.Module:
    """Parse a file; templates that are no Python count as empty."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is read as an attribute, which a noun describes."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def python_files(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python files under folders, without those behind links."""
    for folder in folders:
        yield from (
            path for path in sorted(folder.rglob("*.py")) if not any(above.is_symlink() for above in path.parents)
        )


def row(name: str, paths: Iterable[Path]) -> str:
    """Count what files hold, as a row of the table that is called `name`."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    trees = [parsed(text) for text in texts]
    lines = sum(len(text.splitlines()) for text in texts)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    definitions = sum(isinstance(node, kinds) for tree in trees for node in tree.body)
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds[:2])]
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    docstrings = [text for node in functions if not is_property(node) and (text := ast.get_docstring(node))]
    without_verb = sum(text.split(maxsplit=1)[0].lower().strip(",.:") in NO_VERBS for text in docstrings)
    cells = (
        name,
        f"{lines:,}",
        f"{len(texts):,}",
        f"{1000 * definitions / max(1, lines):.1f}",
        f"{statistics.median(lengths or [0]):g}",
        f"{100 * without_verb / max(1, len(docstrings)):.0f} %",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", help="installed packages to measure beside the project")
    arguments = parser.parse_args()
    print("| | lines | files | definitions per 1,000 lines | median function | docstrings without a verb |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, folders in PARTS.items():
        print(row(name, python_files(ROOT / folder for folder in folders)))
    for package in arguments.packages:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            parser.error(f"{package} is not an installed package: install it, or leave it out")
        print(row(package, python_files(map(Path, spec.submodule_search_locations))))


if __name__ == "__main__":
    main()
