"""Print what `run` reports at the end of a script: each model that it trained, and memory that ran out."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_surgery.cli.terminal import say, write_document
from ckpt_surgery.text import error_line, plural

if TYPE_CHECKING:
    from ckpt_surgery.guarding.takeover import Takeover
    from ckpt_surgery.guarding.trained_model import Trained


def show_training(takeover: Takeover, path: Path | None, script: Sequence[str], rank: str, *, broke_off: bool) -> None:
    """Print what was seen: everything on the first rank, only faults on the others.

    `script` is the script with its arguments, for the command to run next.
    """
    if rank != "0":
        if takeover.failed is not None:
            say(f"ckpt_surgery: rank {rank}: {takeover.failed}")
        for trained in takeover.trained:
            report = trained.report
            for fault in () if report is None else report.told:
                say(f"ckpt_surgery: rank {rank}: {trained.name}: {fault}")
        return
    memory, memory_lines = memory_report(takeover, script)
    if not takeover.trained and not memory_lines:
        before = "the script ended before a" if broke_off else "no"
        say(
            f"ckpt_surgery: {before} model was trained in this process; processes that a script starts are not watched"
        )
    lines = _all_lines(takeover.trained, broke_off=broke_off)
    lines += memory_lines
    for line in lines:
        say(line)
    if path is None:
        return
    if path.suffix == ".json":
        models = [
            {
                **({"model": trained.name} if trained.report is None else trained.report.to_dict()),
                "problems": trained.problems,
                "said": trained.said,
            }
            for trained in takeover.trained
        ]
        error = {"error": takeover.explained} if takeover.explained else {}
        write_document(json.dumps({"models": models, **error, **memory}, indent=2) + "\n", path)
    elif path.suffix in (".html", ".htm"):
        from ckpt_surgery.guarding.page import guard_page

        write_document(guard_page(takeover.trained, memory_lines), path)
    else:
        write_document("\n".join(lines) + "\n", path)


def memory_report(takeover: Takeover, script: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return what is known if torch ran out of memory: as data, and as lines."""
    lines, data = [], dict[str, Any]()
    if caught := takeover.caught:
        data["out_of_memory_caught"] = caught
        lines.append(f"ckpt_surgery: out of memory {plural(caught, 'time')} or more, and the script went on")
    if takeover.failed is None:
        return data, lines
    try:
        gc.collect()  # frees what the failed step made
        from ckpt_surgery.guarding.failed_step import next_command
        from ckpt_surgery.guarding.report import NO_PROOFS
        from ckpt_surgery.planning.out_of_memory import explain_failed

        takeover.search.undo()
        explained = explain_failed(takeover.failed)
        data["out_of_memory"] = explained.to_dict()
        if takeover.proving:  # first, because `--no-prove` changes nothing about the training
            data["proving"] = takeover.proving
            lines.append(f"ckpt_surgery: {takeover.proving} was being proved, which takes memory, too: {NO_PROOFS}")
        lines += f"ckpt_surgery: {explained}".splitlines()
        if explained.model:
            lines.append(f"ckpt_surgery: to find what fits, run: {next_command(script)}")
    except Exception as error:
        lines.append(f"ckpt_surgery: {takeover.failed}; more is not known: {error_line(error)}")
    return data, lines


def _all_lines(trained: Iterable[Trained], *, broke_off: bool) -> list[str]:
    """Return what was seen of each model as lines; models with the same lines share them."""
    names: dict[tuple[str, ...], list[str]] = {}
    for model in trained:
        own = [*(f"ckpt_surgery: {sentence}" for sentence in model.said), *model.table.splitlines()]
        report = model.report
        if report is not None and broke_off and not report.steps:
            own.append(f"ckpt_surgery: {model.name}: the script ended in its first step, of which nothing is known")
        elif report is not None:
            own += str(report).splitlines()
            own += [f"ckpt_surgery: {plural(len(report.told), 'fault')}"] if report.faults else []
        names.setdefault(tuple(own), []).append(model.name)
    lines: list[str] = []
    for own_lines, models in names.items():
        lines += own_lines
        if len(models) > 1:
            lines.append(f"ckpt_surgery: {models[0]}: the same for {plural(len(models) - 1, 'more model')}")
    return lines
