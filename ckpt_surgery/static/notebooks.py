"""Read the code cells of notebooks as one Python text, and place its findings in cells. No cell is run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ckpt_surgery.static.newer import syntax_error

if TYPE_CHECKING:
    from ckpt_surgery.codemods.finding import Finding

SUFFIX = ".ipynb"
_TITLE = "# %% code cell"
_PYTHON_CELL = re.compile(r"%%(time|timeit|capture|prun)\b")
_MAGIC = re.compile(r"^(\s*)(?:[%!?].*|[\w.]+\?{1,2}\s*)$", re.MULTILINE)
_ASSIGNED_MAGIC = re.compile(r"^(\s*\w+\s*=\s*)[%!].*$", re.MULTILINE)


def python_of(notebook: str) -> str:
    """Return the code cells of a notebook as one text, without magics and shell lines.

    Each is below a comment with its number.

    Raises:
        ValueError: the text is not a notebook, or a cell of it is not Python.
    """
    try:
        cells = json.loads(notebook)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (KeyError, TypeError, ValueError):
        raise ValueError("is not a notebook of format 4") from None
    text = ""
    for number, source in enumerate(sources, 1):
        if syntax_error(source) is not None:
            is_other = source.lstrip().startswith("%%") and not _PYTHON_CELL.match(source.lstrip())  # language
            source = "" if is_other else _ASSIGNED_MAGIC.sub(r"\1None", _MAGIC.sub(r"\1pass", source))
            if (error := syntax_error(source)) is not None:
                raise ValueError(f"code cell {number}, line {error.lineno or 1} does not parse ({error.msg})")
        text += f"{_TITLE} {number}\n{source}\n"
    return text


def in_cell(finding: Finding, text: str) -> Finding:
    """Return a finding as one in its cell, to be repaired by a person; `text` is `python_of` the notebook."""
    lines = text.split("\n")

    def place(line: int) -> tuple[str, int]:
        title = max(number for number, above in enumerate(lines[:line], 1) if above.startswith(_TITLE))
        return lines[title - 1].removeprefix("# %% code "), line - title

    def words(match: re.Match[str]) -> str:
        cell, line = place(int(match[1]))
        return f"line {line} of {cell}"

    cell, line = place(finding.line)
    return replace(
        finding,
        path=f"{finding.path}:{cell}",
        line=line,
        first_line=max(0, finding.first_line - finding.line + line),
        message=re.sub(r"\bline (\d+)\b", words, finding.message),
        repairs=(),
    )
