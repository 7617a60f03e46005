"""The frame of the surveys: many cases, each measured in a process of its own, and a page in docs/coverage of them.

A survey is a small file: its cases, a function that measures one of them, and the sections of its page. Neither torch
nor transformers is needed to write a page again from the json beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from math import inf
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

from ckpt_surgery.text import error_line, paragraphs

ROOT = Path(__file__).resolve().parents[1]
COVERAGE = ROOT / "docs" / "coverage"
TOO_LONG = "took too long"
TOO_LARGE = "took too much memory"
MODELS = ("transformers.models.llama.modeling_llama", "ckpt_surgery.tiny", "ckpt_surgery.measure.verify")
"""Modules that import most of what steps of models need."""
Row = Mapping[str, Any]
"""What was found of a `case`, as plain data, or the `problem` that it had."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page in docs/coverage: its `notice`, and sections made from the figures in the json beside it."""

    name: str
    notice: str
    sections: Callable[[Any], Iterable[str]]

    @property
    def json(self) -> Path:
        """The file of the figures."""
        return COVERAGE / f"{self.name}.json"

    @property
    def markdown(self) -> Path:
        """The file of the page."""
        return COVERAGE / f"{self.name}.md"

    def read(self) -> Any:
        """Read the figures. Raises OSError."""
        return json.loads(self.json.read_text(encoding="utf-8"))

    def text(self, figures: Any = None) -> str:
        """Render the page of these figures; by default of those that are kept."""
        return paragraphs(self.notice, *self.sections(self.read() if figures is None else figures)) + "\n"

    def show(self, figures: Any, keep: bool, merged: Callable[[Any], Any] | None = None) -> None:
        """Print the page of these figures; keep them if they are to be kept, `merged` with those that are there."""
        print(self.text(figures))
        if keep:
            self.write(merged(self.read()) if merged else figures)

    def write(self, figures: Any) -> None:
        """Keep the figures, and write the page of them."""
        self.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        self.markdown.write_text(self.text(self.read()), encoding="utf-8")


def written_by(command: str, name: str) -> str:
    """Return the notice of a page that a command writes, or its figures alone."""
    return f"<!-- Written by `{command}`, and by `python -m docs.generate` from {name}.json. -->"


@dataclass(frozen=True, slots=True)
class Survey:
    """A command that measures many cases and resumes an interrupted run.

    Attributes:
        name: the module in `benchmarks`.
        doc: its docstring.
        cases: returns the names of all cases.
        measure: returns what is found of a case.
        conclude: prints what all rows, the latest of each case, come to, given the number of all cases, and writes the
            page where that is asked for. Returns whether something is wrong.
        imports: names the modules that `measure` needs, which are imported once for all processes.
        seconds: what one case may take.
        most_bytes: the resident memory that it may take.
        shuffled: whether the order is random, the same each time: what was done by then is a random sample.
    """

    name: str
    doc: str | None
    cases: Callable[[], Sequence[str]]
    measure: Callable[[str], Row]
    conclude: Callable[[Sequence[Row], int, bool], bool] = lambda rows, known, page: False
    imports: Sequence[str] = ()
    seconds: float = 120.0
    most_bytes: int = 2**63
    shuffled: bool = True

    def main(self, arguments: Sequence[str] | None = None, parents: Sequence[argparse.ArgumentParser] = ()) -> int:
        """Measure what the arguments name; options of `parents` are passed over. Return 1 where something is wrong."""
        about = (self.doc or "").partition("\n")[0]
        parser = argparse.ArgumentParser(self.name, description=about, parents=list(parents))
        parser.add_argument("file", type=Path, help="keeps a line of json for each case; those in it are passed over")
        parser.add_argument("cases", nargs="*", metavar="CASE", help="measure only these")
        parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default: 1)")
        parser.add_argument("--minutes", type=float, default=inf, metavar="N", help="begin none after so long")
        parser.add_argument("--again", action="store_true", help="begin the file anew")
        parser.add_argument("--page", action="store_true", help="write the page from the whole file")
        options = parser.parse_intermixed_args(arguments)
        known = self.cases()
        if unknown := set(options.cases) - set(known):
            parser.error(f"{min(unknown)!r} is no case: they are such as {known[0]!r}")
        options.file.parent.mkdir(parents=True, exist_ok=True)
        if options.again:
            options.file.unlink(missing_ok=True)
        drawn = Random(0).sample(known, len(known)) if self.shuffled else known
        self.run(options.cases or drawn, options.file, options.jobs, 60 * options.minutes)
        rows = list({row["case"]: row for row in rows_of(options.file)}.values())
        return int(self.conclude(rows, len(known), options.page))

    def run(self, names: Sequence[str], file: Path, jobs: int = 1, in_all: float = inf) -> None:
        """Measure each case that `file` lacks, and append its row; after `in_all` seconds no further one is begun."""
        if file.is_file() and not file.read_text(encoding="utf-8").endswith("\n"):  # a line was cut off
            file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
        done = {row["case"] for row in rows_of(file)}
        waiting = [name for name in names if name not in done]
        for name in self.imports if waiting else ():
            import_module(name)
        running: dict[str, tuple[BaseProcess, float]] = {}
        last = monotonic() + in_all
        while waiting or running:
            if monotonic() > last:
                waiting.clear()
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                process: BaseProcess = get_context("fork").Process(target=self._work, args=(name, file))
                process.start()
                running[name] = (process, monotonic())
            sleep(0.02)
            for name, (process, start) in list(running.items()):
                late, large = monotonic() - start > self.seconds, _resident_bytes(process) > self.most_bytes
                if process.is_alive() and not late and not large:
                    continue
                if process.is_alive() and process.pid:
                    os.kill(process.pid, signal.SIGKILL)
                process.join()
                del running[name]
                if late or large or process.exitcode:
                    why = TOO_LONG if late else TOO_LARGE if large else f"exit code {process.exitcode}"
                    _append(file, {"case": name, "problem": why})

    def _work(self, name: str, file: Path) -> None:
        warnings.filterwarnings("ignore")
        logging.disable(logging.CRITICAL)
        try:
            row = self.measure(name)
        except Exception as error:  # whatever a case does is its result
            row = {"problem": error_line(error)}
        _append(file, {"case": name, **row})


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Read the rows in a file; a line that was cut off is passed over."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def installed(*packages: str) -> dict[str, str]:
    """Return the versions of packages, without what comes behind a plus sign."""
    return {name: version(name).partition("+")[0] for name in packages}


def tiny(name: str) -> Any:
    """Make the tiny model of a class of the installed transformers, in training mode."""
    from ckpt_surgery.tiny import model_classes, tiny_model

    entry = model_classes()[name]
    made = tiny_model(entry.load(), entry.config_class(entry.model_type))
    made.model.train()
    return made


def step_as_it_stands(model: Any, inputs: Mapping[str, Any], **options: Any) -> Any:
    """Return the record of a step of a model, checkpointed as it is. Raises RuntimeError where the step fails."""
    from ckpt_surgery.measure.step import run_step

    record = run_step(model, inputs, **{"blocks": {}, "switch": lambda *_: None, **options})
    if record.error is not None:
        raise RuntimeError(str(record.error))
    return record


def model_names() -> list[str]:
    """Return the names of all model classes of the installed transformers."""
    from ckpt_surgery.survey.model_names import catalogue

    return sorted(catalogue())


def _resident_bytes(process: BaseProcess) -> int:
    """Return the resident memory of a process; 0 where that cannot be looked up."""
    try:
        pages = Path(f"/proc/{process.pid}/statm").read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _append(file: Path, row: Row) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
