"""Turn a file's text into its `FileFacts`, by `ast` alone: the code that is read is never imported or run."""

from __future__ import annotations

import ast

from ckpt_surgery.codemods.facts.checkpoint_helpers import without_currying
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.file_reader import read_facts
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.providers import declared_facts


def extract(source: str) -> FileFacts:
    """Return the facts of one file.

    Raises:
        SyntaxError: the text is not Python that this interpreter parses.
        ValueError: the text holds a NUL byte.
        RecursionError: the text is nested deeper than Python's parser allows.
    """
    tree = without_currying(ast.parse(source), source)
    return read_facts(FileSyntax(source, tree), *declared_facts())
