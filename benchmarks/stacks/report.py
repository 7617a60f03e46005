"""The table of `wrap_blocks` on other libraries' models: its figures, and its page. `measure` makes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from ckpt_surgery.measure.results import MODES, Mode
from ckpt_surgery.text import code, listed, markdown_table, percent, plural, prose

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "coverage" / "stacks.json"
"""Where the figures of the page are kept."""
PAGE = FIGURES.with_suffix(".md")
NOTICE = "<!-- Written by `python -m benchmarks.stacks`, and by `python -m docs.generate` from stacks.json. -->"
ROUNDING = 1.005
"""How much more than the library's own checkpointing counts as more."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes of activations that a forward keeps for its backward, and their peak over the step."""

    kept: int
    peak: int

    @classmethod
    def of(cls, data: Mapping[str, int] | None) -> Self | None:
        """What `asdict` made `data` from."""
        return None if data is None else cls(**data)


@dataclass(frozen=True, slots=True)
class Row:
    """One model.

    Attributes:
        library: the distribution it comes from.
        model: what it is called there.
        depth: "tiny", or whose proportions it has.
        blocks: the checkpointed blocks by class.
        verdicts: what is wrong with a step in each mode that was measured; empty where nothing is.
        without: a step without checkpointing.
        library_switch: a step with the library's own checkpointing; None where it has none.
        wrapped: a step after `wrap_blocks`.
        undone: whether `undo` left the model as it was.
        problem: why `wrap_blocks` refused the model; empty where it did not.
    """

    library: str
    model: str
    depth: str
    blocks: Mapping[str, int] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    without: Memory | None = None
    library_switch: Memory | None = None
    wrapped: Memory | None = None
    undone: bool = False
    problem: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from."""
        memories = {name: Memory.of(data[name]) for name in ("without", "library_switch", "wrapped")}
        return cls(**{**data, **memories})

    @property
    def wrong(self) -> bool:
        """Whether a step went wrong, or the undo."""
        return not self.problem and (any(self.verdicts.values()) or not self.undone)

    @property
    def keeps_more(self) -> bool:
        """Whether the peak is higher than with the library's own checkpointing."""
        own, ours = self.library_switch, self.wrapped
        return own is not None and ours is not None and ours.peak > ROUNDING * own.peak


@dataclass(frozen=True, slots=True)
class Stacks:
    """All that the page shows: the versions it was made with, and its rows."""

    versions: Mapping[str, str]
    rows: Sequence[Row]


def read_stacks(path: Path = FIGURES) -> Stacks:
    """The figures that the page is made from."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Stacks(data["versions"], [Row.of(row) for row in data["rows"]])


def write_stacks(stacks: Stacks, path: Path = FIGURES) -> None:
    """Keep the figures."""
    content = {"versions": dict(stacks.versions), "rows": [asdict(row) for row in stacks.rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def page(stacks: Stacks) -> str:
    """The page, as markdown."""
    rows = stacks.rows
    found = [row for row in rows if not row.problem]
    versions = listed([f"{name} {version}" for name, version in stacks.versions.items()])
    more = sum(row.keeps_more for row in rows)
    counted = (
        f"Of {plural(len(rows), 'model')}, `wrap_blocks` found blocks in {len(found)}. "
        f"{_none(sum(row.wrong for row in rows)).capitalize()} had wrong gradients, wrong buffers or an incomplete "
        f"undo, and {_none(more)} had a higher peak than with the library's own checkpointing."
    )
    return "\n".join(
        [
            NOTICE,
            "# Models of other libraries",
            "",
            f"What `wrap_blocks` does to models with random weights, on a CPU, with {versions}.",
            "",
            counted,
            "",
            "Gradients and buffers are those of a step without checkpointing, and every block is recomputed once. "
            "Bytes are those of activations: what the forward keeps for the backward, and the peak "
            "over the step, as shares of a step without checkpointing. Convolutions on small images keep much in "
            "their first layers, where there are no blocks.",
            "",
            *_tables(rows),
            *_refused(rows),
            "## Measure it",
            "",
            "```console",
            "$ .venv/bin/nox -s stacks",
            "```",
            "",
        ]
    )


def _tables(rows: Sequence[Row]) -> Iterator[str]:
    modes = [mode for mode in MODES if any(mode in row.verdicts for row in rows)]
    titles = [mode.replace("_", "-") for mode in modes]
    for library in dict.fromkeys(row.library for row in rows):
        lines = [_line(row, modes) for row in rows if row.library == library and not row.problem]
        if lines:
            yield f"## {library}"
            yield ""
            header = ("model", "proportions", "blocks", *titles, "kept", "peak", "peak, own switch", "undo")
            yield markdown_table(header, lines)


def _line(row: Row, modes: Sequence[Mode]) -> tuple[str, ...]:
    blocks = ", ".join(f"{count} {code(name)}" for name, count in row.blocks.items())
    verdicts = (prose(row.verdicts.get(mode, "not tried")) or "equal" for mode in modes)
    return (
        row.model,
        row.depth,
        blocks,
        *verdicts,
        _share(row.wrapped, row.without, "kept"),
        _share(row.wrapped, row.without, "peak"),
        _share(row.library_switch, row.without, "peak") or "has none",
        "exact" if row.undone else "**not exact**",
    )


def _refused(rows: Iterable[Row]) -> Iterator[str]:
    refused = [row for row in rows if row.problem]
    if refused:
        yield "## Without blocks"
        yield ""
        yield markdown_table(
            ("model", "what wrap_blocks says"), [(f"{r.library}: {r.model}", prose(r.problem)) for r in refused]
        )


def _none(count: int) -> str:
    return str(count) if count else "none"


def _share(part: Memory | None, whole: Memory | None, figure: Literal["kept", "peak"]) -> str:
    return "" if part is None or whole is None else percent(getattr(part, figure) / getattr(whole, figure))
