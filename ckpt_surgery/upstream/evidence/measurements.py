"""What `verify` measured before and after, as pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from ckpt_surgery.measure.results import LEVEL_TITLES, LEVELS, MODES, Mode
from ckpt_surgery.text import bullets, code, folded, markdown_table, plural, prose, size
from ckpt_surgery.upstream.evidence.folding import LONG, bullet_list, code_list
from ckpt_surgery.upstream.evidence.results import ModelRow, RowVerdict

_METHOD = (
    "`ckpt_surgery verify` ran one training step of a tiny model with random weights for each class and mode, with "
    "and without checkpointing, on the base and on the series. The column `kept` shows the bytes that autograd kept "
    "from the forward to the backward."
)


def before_and_after(rows: Sequence[ModelRow]) -> str:
    """How many rows have each verdict, and a table with one line for each class.

    Both modes share a cell if they agree. Classes that were ok before are folded; if the table is long, so are those
    that are repaired. Why one was not measured is said by the reasons of the status.
    """
    if not rows:
        return "Not measured."
    by_class: dict[tuple[str, str], list[ModelRow]] = {}
    for row in rows:
        by_class.setdefault((row.family, row.model), []).append(row)
    ok = [group[0].model for group in by_class.values() if _all(group, RowVerdict.OK_BEFORE)]
    listed = [group for group in by_class.values() if not _all(group, RowVerdict.OK_BEFORE)]
    unsettled = [group for group in listed if not _all(group, RowVerdict.REPAIRED)]
    parts = [_counts(rows, len(by_class))]
    if len(listed) <= LONG:
        parts += [_class_table(listed)] if listed else []
    else:
        parts += [_class_table(unsettled)] if unsettled else []
        parts.append(folded(f"{_classes(len(listed))} before and after", _class_table(listed)))
    if ok:
        parts.append(folded(f"{_classes(len(ok))} ok before and after", code_list(ok)))
    legend = _level_legend(rows)
    return "\n\n".join([*parts, *(["What the levels check:", legend] if legend else [])])


def levels_text(levels: Sequence[str]) -> str:
    """The levels that failed, or ok."""
    return ", ".join(levels) or "ok"


def fault_list(faults: Iterable[tuple[ModelRow, tuple[str, ...]]]) -> str:
    """Each sentence about a measured row once, with the classes and modes it holds for; empty if there are none."""
    holders: dict[str, dict[str, list[Mode]]] = {}
    for row, sentences in faults:
        for sentence in sentences if not row.problem else ():
            holders.setdefault(sentence, {}).setdefault(row.model, []).append(row.mode)
    return bullet_list([f"{_holders(models)}: {prose(sentence)}" for sentence, models in holders.items()], "fault")


def _all(rows: Iterable[ModelRow], verdict: RowVerdict) -> bool:
    return all(row.verdict is verdict for row in rows)


def _classes(count: int) -> str:
    return plural(count, "class", "classes")


def _counts(rows: Sequence[ModelRow], classes: int) -> str:
    """How many rows have each verdict, and how they were measured."""
    verdicts = [row.verdict for row in rows]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in RowVerdict if verdict in verdicts]
    modes = f", {plural(len(MODES), 'mode')} each" if len(rows) == classes * len(MODES) else ""
    summary = f"all {verdicts[0]}" if len(counts) == 1 else f"{', '.join(counts)} of {plural(len(rows), 'pair')}"
    line = f"{_classes(classes)}{modes}: {summary}."
    return line if all(row.problem for row in rows) else f"{line}\n\n{_METHOD}"


def _class_table(by_class: Iterable[Sequence[ModelRow]]) -> str:
    return markdown_table(["class", "before", "after", "kept", "verdict"], map(_class_line, by_class))


def _class_line(rows: Sequence[ModelRow]) -> list[str]:
    cells: list[list[tuple[str, str]]] = [
        [(row.mode, "-" if row.problem else levels_text(row.before)) for row in rows],
        [(row.mode, "-" if row.problem else levels_text(row.after)) for row in rows],
        [(row.mode, _kept(row)) for row in rows],
        [(row.mode, row.verdict) for row in rows],
    ]
    return [code(rows[0].model), *map(_by_mode, cells)]


def _kept(row: ModelRow) -> str:
    before, after = (size(count) if count and not row.problem else "-" for count in (row.kept_before, row.kept_after))
    return f"{before} -> {after}" if (before, after) != ("-", "-") else "-"


def _by_mode(cell: Sequence[tuple[str, str]]) -> str:
    """The text of a cell once if all modes agree, and after the name of each mode if they do not."""
    texts = list(dict.fromkeys(text for _, text in cell))
    return texts[0] if len(texts) == 1 else "; ".join(f"{mode}: {text}" for mode, text in cell)


def _level_legend(rows: Iterable[ModelRow]) -> str:
    """What the levels that failed somewhere check; empty if none did."""
    failed = {level for row in rows if not row.problem for level in (*row.before, *row.after)}
    return bullets(f"`{level}`: {LEVEL_TITLES[level]}" for level in LEVELS if level in failed)


def _holders(models: dict[str, list[Mode]]) -> str:
    """Classes with the modes in which they have a fault; classes with the same modes are listed together."""
    by_modes = sorted(models.items(), key=lambda item: item[1])
    return "; ".join(
        f"{code_list(model for model, _ in group)} ({'both modes' if set(modes) == set(MODES) else modes[0]})"
        for modes, group in groupby(by_modes, key=lambda item: item[1])
    )
