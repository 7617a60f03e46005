"""Helpers that format text: sizes, plurals, lists, tables, Markdown.

Text is escaped on its way into Markdown: a reader on GitHub sees it as it is, without formatting, links or mentions.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Iterable, Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)B", re.IGNORECASE)
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
LINE = 110
"""The width of a report in columns."""
_NOTEBOOK_STYLE = (
    "font-family: monospace; line-height: 1.3; white-space: pre; overflow-x: auto; color: inherit; background: none"
)
_LONGEST_ERROR = 300
# an underscore between letters is not markup
_MARKUP = re.compile(r"[\\`*<>\[\]&~]|(?<![^\W_])_|_(?![^\W_])")
_ADDRESSED = re.compile(r"(?<!\w)([@#]\w(?:[\w./-]*\w)?)")
_BLOCK_START = re.compile(r"^(?:[-+#]+|\d+(?=[.)]))(?=[.)]?(?:\s|$))")


def size(count: int) -> str:
    """Format a number of bytes with its unit, such as 1.5 KiB or 200 MiB."""
    unit, divisor = size_unit(count)
    return f"{count} B" if unit == "B" else f"{count / divisor:.{1 if abs(count) < 100 * divisor else 0}f} {unit}"


def size_unit(largest: float) -> tuple[str, int]:
    """Return the unit in which `largest` bytes are a number below 1024, and its size in bytes."""
    power = 0
    while abs(largest) >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    return _UNITS[power], 1024**power


def flops(count: int) -> str:
    """Format a number of floating-point operations with its unit, such as 1.5 MFLOP (1000 kFLOP) or 200 GFLOP."""
    power = 0
    while abs(count) >= 1000 ** (power + 1) and power < len(_THOUSANDS) - 1:
        power += 1
    scaled = count / 1000**power
    return f"{scaled:.{1 if power and abs(scaled) < 100 else 0}f} {_THOUSANDS[power]}FLOP"


def size_in_bytes(text: str) -> int | None:
    """Read a size with its unit, such as 80GB (10**9) or 80 GiB (2**30), in bytes; None if it is not one."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    unit = match[2].lower()
    return int(float(match[1]) * (1024 if unit.endswith("i") else 1000) ** _POWERS[unit[0]])


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Format a number with its noun: 1 class, 1,200 classes."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def one_line(text: object) -> str:
    """Put a text, or the message of an error, on one line."""
    return " ".join(str(text).split())


def error_line(error: BaseException) -> str:
    """Put an error on one line of at most 300 characters, with its type and without its traceback."""
    message = one_line(error)
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return line if len(line) <= _LONGEST_ERROR else line[: _LONGEST_ERROR - 3] + "..."


def listed(names: Sequence[str]) -> str:
    """Join names as a clause: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def some(names: Iterable[str], most: int = 3) -> str:
    """List the first few names, and how many more there are."""
    every = list(names)
    more = len(every) - most
    return ", ".join(every[:most]) + (f" and {more:,} more" if more > 0 else "")


def ranks_in_words(ranks: Sequence[int], of: int) -> str:
    """Name ranks of a group of `of`: rank 1, ranks 0 and 2, or every rank."""
    if len(ranks) == of:
        return "every rank"
    return f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks])}"


def percent(share: float | None) -> str:
    """Format a share in per cent, or a dash if it is None."""
    return "-" if share is None else f"{100 * share:.0f} %"


def ratio(number: float, reference: float) -> str:
    """Format how many times `reference` a number is, or a dash if `reference` is 0."""
    return f"{number / reference:.2f}x" if reference else "-"


def wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Wrap text into lines of at most `width` columns; a single longer word is not broken."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of equally many cells as indented lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [("  " + "  ".join(map(str.ljust, row, widths))).rstrip() for row in rows]


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> list[str]:
    """Return the lines of a plain-text table; the column headed `right` is aligned right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right" if heading == right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    with io.StringIO() as text:
        # in a notebook, rich would show the table there and write nothing
        Console(file=text, width=LINE, color_system=None, force_jupyter=False, markup=False).print(table)
        return [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]


class ShownInNotebooks:
    """A result that notebooks show as its text, with its lines unchanged and its verdicts marked."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        title, *lines = html.escape(str(self), quote=False).split("\n")
        text = "\n".join([f"<b>{title}</b>", *lines])
        marked = re.sub(r"\bFAILED\b|^fault:", r'<b style="color: #e5484d">\g<0></b>', text, flags=re.MULTILINE)
        return f'<pre style="{_NOTEBOOK_STYLE}">{marked}</pre>'


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown. Its cells are Markdown of one line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(text: str) -> str:
    """Format a name as code on one line. A backtick becomes a quote: text that has to be exact needs `fenced`."""
    return f"`{one_line(text).replace('`', chr(39))}`"


def prose(text: str) -> str:
    """Put a sentence on one line: what is between two single backticks stays code, everything else is plain text.

    `@name` and `#12` become code, so that nobody is notified and no issue is linked.
    """
    line = one_line(text)
    pieces = line.split("`")
    if len(pieces) % 2 == 0 or "``" in line:
        pieces = [line]
    line = "".join(code(piece) if index % 2 else _plain(piece) for index, piece in enumerate(pieces))
    # escape what would make it a heading, a list or a rule
    return _BLOCK_START.sub(lambda start: f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}", line)


def bullets(items: Iterable[str]) -> str:
    """Return a list of items that are Markdown of one line each."""
    return "\n".join(f"- {item}" for item in items)


def fenced(text: str, language: str = "") -> str:
    """Return a code block that shows `text` as it is: its fence is longer than any run of backticks inside."""
    fence = "`" * max([3, *(1 + len(run) for run in re.findall("`+", text))])
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def console(commands: Iterable[str]) -> str:
    """Return a code block with commands to type."""
    return fenced("\n".join(f"$ {command}" for command in commands), "console")


def titled(title: str, body: str) -> str:
    """Put a piece of Markdown below its title; empty if the piece is."""
    return f"{title}\n\n{body}" if body else ""


def paragraphs(*pieces: str) -> str:
    """Join the pieces of Markdown that are not empty with blank lines."""
    return "\n\n".join(filter(None, pieces))


def folded(summary: str, body: str) -> str:
    """Return a part that opens on a click. The summary is plain text, the body Markdown."""
    return f"<details>\n<summary>{html.escape(summary, quote=False)}</summary>\n\n{body}\n\n</details>"


def _plain(text: str) -> str:
    """Escape markup, and format as code the names and numbers that GitHub would act on."""
    parts = enumerate(_ADDRESSED.split(text))  # every second part is such a name or number
    return "".join(code(part) if index % 2 else _MARKUP.sub(r"\\\g<0>", part) for index, part in parts)
