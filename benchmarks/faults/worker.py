"""One question on one script, asked in a process of its own: forked from one that has imported torch, or as ranks.

python -m benchmarks.faults.worker QUESTION SCRIPT ANSWER
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults import judges, script

PRELOADED = [
    judges.__name__,
    "torch._dynamo",
    "transformers.modeling_layers",
    "ckpt_surgery.measure.verify",
    "ckpt_surgery.surgery",
]
"""What takes seconds to import."""
PATIENCE = 120
"""The seconds that one question may take."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a script: `symptom`, the symptom after a cure (`wrap`, `apply`), or a judge by name."""

    what: str
    path: Path
    ranks: int = 1


def ask_all(questions: Iterable[Question], jobs: int) -> Iterator[tuple[Question, Mapping[str, Any]]]:
    """Yield each question with its answer, as they come. An answer `crashed` holds the last line of a traceback."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        futures = {pool.submit(ask, question): question for question in questions}
        for future in as_completed(futures):
            yield futures[future], future.result()


def ask(question: Question) -> Mapping[str, Any]:
    """Return the answer to a question, with the seconds that it took."""
    began = time.perf_counter()
    path = question.path
    if question.what == "apply":
        path = path.with_name(f"applied_{path.name}")
        path.write_text(question.path.read_text(encoding="utf-8"), encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "ckpt_surgery", "apply", "--unsafe", str(path)], capture_output=True, check=False
        )
    if question.what == "wrap":
        os.environ[script.CURE] = "wrap"
    if question.ranks == 1 or question.what in judges.ONCE:
        answer = _answer(question.what, path)
    else:
        answer = _of_ranks(question, path)
    return {**answer, "seconds": round(time.perf_counter() - began, 2)}


def _answer(what: str, path: Path) -> Mapping[str, Any]:
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(PATIENCE)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")
    try:
        return judges.answer(what, path)
    except BaseException as raised:  # also what ends a process: each is somebody's script
        return {"crashed": f"{type(raised).__name__}: {raised}", "traceback": traceback.format_exc()}
    finally:
        signal.alarm(0)


def _give_up(*_: object) -> None:
    raise TimeoutError(f"took more than {PATIENCE} s")


def _of_ranks(question: Question, path: Path) -> Mapping[str, Any]:
    """Ask on every rank: the first answer that shows or finds something counts."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={question.ranks}"]
    answers = path.with_suffix(f".{question.what}.answer")
    try:
        subprocess.run(
            [sys.executable, *launcher, "-m", __name__, question.what, str(path), str(answers)],
            capture_output=True,
            timeout=2 * PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"crashed": f"took more than {2 * PATIENCE} s"}
    files = [answers.with_suffix(f".{rank}") for rank in range(question.ranks)]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    if not found:
        return {"crashed": "no rank answered"}
    return next((each for each in found if each.get("shown") or each.get("found")), found[0])


if __name__ == "__main__":
    what, path, answers = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    said = _answer(what, path)
    answers.with_suffix(f".{os.environ['RANK']}").write_text(json.dumps(said), encoding="utf-8")
