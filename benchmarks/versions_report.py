"""The table of versions: what works with which torch and transformers. Its figures, and its page.

Needs neither torch nor transformers: `versions` measures, and this writes down.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from packaging.version import Version

from ckpt_surgery.text import code, markdown_table

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "coverage" / "versions.json"
"""Where the figures of the page are kept."""
PAGE = FIGURES.with_suffix(".md")
NOTICE = "<!-- Written by `python -m benchmarks.versions`, and by `python -m docs.generate` from versions.json. -->"
DOORS: Mapping[str, str] = {
    "wrap": "gradients after `wrap_blocks` equal those of a step without checkpointing, and less is kept",
    "verify": "`verify` finds nothing wrong after `wrap_blocks`",
    "explain": "`explain` tells to the byte what a step keeps",
    "plan": "`plan` finds a way to a lower peak, with which gradients are equal but for rounding",
    "save": '`wrap_blocks(save=["attention"])`: gradients are equal',
    "offload": '`wrap_blocks(offload="cpu")`: gradients are equal',
    "long_context": "`long_context`: gradients are equal but for rounding",
    "compile": "`torch.compile` after `wrap_blocks`: gradients are equal but for rounding",
    "compiled save": "`torch.compile` of the model, and of each block, after `wrap_blocks(save=...)`: gradients are "
    "equal but for rounding, and the backward runs fewer products for each block than without `save`",
    "run": "a script that trains the model ends under `ckpt_surgery run`, with every block proved",
}
"""What is tried with every class, by column, and what has to come out of it."""

_WHAT = """\
The whole test suite runs with torch 2.13.0 and transformers 5.23.0 and 4.57.6. With other versions tiny models of the
most used classes go through these doors, on the processor, and `verify` looks for faults that were planted into the
checkpointing of transformers 5: for all of them, or for every fifth. A door added later was not tried with all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One environment.

    Attributes:
        versions: of Python, torch and transformers.
        worked: by column, the classes with which it worked; a column that is missing was not tried.
        reasons: by column and class, why it did not.
        faults: how many planted faults were tried.
        missed: those that `verify` did not find at their level, or not there alone.
    """

    versions: Mapping[str, str]
    worked: Mapping[str, Sequence[str]]
    reasons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    faults: int = 0
    missed: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from. Raises KeyError or TypeError where it did not."""
        return cls(**{**data, "missed": tuple(data["missed"])})

    @property
    def key(self) -> tuple[Version, Version, Version]:
        """Torch, transformers and Python, by which rows are told apart and ordered."""
        torch, transformers, python = (Version(self.versions[name]) for name in ("torch", "transformers", "python"))
        return Version(torch.public), transformers, python

    def after(self, earlier: Row) -> Row:
        """This row, with what only an earlier try of the same versions tried."""
        others = {door: why for door, why in earlier.reasons.items() if door not in self.worked}
        tried = self if self.faults else earlier
        worked, reasons = {**earlier.worked, **self.worked}, {**others, **self.reasons}
        return Row(self.versions, worked, reasons, tried.faults, tried.missed)

    @property
    def wrong(self) -> bool:
        """Whether something did not work."""
        return bool(self.missed) or any(self.reasons.values())


def read_rows(file: Path = FIGURES) -> list[Row]:
    """The rows that are kept. Raises OSError or TypeError where there are none."""
    return [Row.of(row) for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]


def write_rows(rows: Sequence[Row], file: Path = FIGURES) -> None:
    """Keep the rows, in their order."""
    data = {"rows": [asdict(row) for row in sorted(rows, key=lambda row: row.key)]}
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def page(rows: Sequence[Row]) -> str:
    """The page of these rows."""
    titles = ["torch", "transformers", "Python", "tests of planted faults passed", *DOORS]
    table = [
        [
            str(torch),
            str(transformers),
            str(python),
            f"{row.faults - len(row.missed):,} of {row.faults:,}" if row.faults else "not tried",
            *(
                f"{len(row.worked[door])} of {len(row.worked[door]) + len(row.reasons.get(door, {}))}"
                if door in row.worked
                else "not tried"
                for door in DOORS
            ),
        ]
        for row in sorted(rows, key=lambda row: row.key)
        for torch, transformers, python in [row.key]
    ]
    meanings = [f"- {door}: {meaning}." for door, meaning in DOORS.items()]
    failures = [
        f"- torch {torch}, transformers {transformers}: {what}"
        for row in sorted(rows, key=lambda row: row.key)
        for torch, transformers, _ in [row.key]
        for what in (
            *(f"{code(fault)} fails." for fault in row.missed),
            *(f"{door} of {code(name)}: {why}" for door, each in row.reasons.items() for name, why in each.items()),
        )
    ]
    return (
        "\n\n".join(
            [
                NOTICE,
                "# Versions of torch and transformers",
                _WHAT,
                markdown_table(titles, table),
                "\n".join(meanings),
                "## What does not work",
                "\n".join(failures) or "Nothing that is known.",
            ]
        )
        + "\n"
    )
