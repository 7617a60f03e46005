"""One question on one script, asked in a process of its own: forked from one that has imported torch, or as ranks.

python -m benchmarks.faults.worker QUESTION SCRIPT ANSWER
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
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
_FORKS = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a script: `symptom`, the symptom after a cure (`wrap`, `apply`), or a judge by name."""

    what: str
    path: Path
    ranks: int = 1


def ask_all(questions: Iterable[Question], jobs: int) -> Iterator[tuple[Question, Mapping[str, Any]]]:
    """Yield each question with its answer, as they come. An answer `crashed` holds what the judge raised."""
    _FORKS.set_forkserver_preload(PRELOADED)
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(ask, question): question for question in questions}
        for future in as_completed(futures):
            yield futures[future], future.result()


def ask(question: Question) -> Mapping[str, Any]:
    """Return the answer to a question, with the seconds that it took."""
    began = time.perf_counter()
    alone = question.ranks == 1 or question.what in judges.ONCE
    answer = _forked(question) if alone else _of_ranks(question)
    return {**answer, "seconds": round(time.perf_counter() - began, 2)}


def _forked(question: Question) -> Mapping[str, Any]:
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_send, args=(question, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(PATIENCE):
            answer: Mapping[str, Any] = receiver.recv()
            return answer
        return {"crashed": f"took more than {PATIENCE} s"}
    except EOFError:
        return {"crashed": "its process died"}
    finally:
        process.kill()
        process.join()


def _send(question: Question, sender: Connection) -> None:
    sender.send(answered(question.what, question.path))


def answered(what: str, path: Path) -> Mapping[str, Any]:
    """Answer a question in this process, which prints nothing from now on."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")
    if what == "wrap":
        os.environ[script.CURE] = what
    try:
        return judges.answer(what, path)
    except BaseException as raised:  # also what ends a process: each is somebody's script
        return {"crashed": f"{type(raised).__name__}: {raised}", "traceback": traceback.format_exc()}


def _of_ranks(question: Question) -> Mapping[str, Any]:
    """Ask on every rank: the first answer that shows or finds something counts."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={question.ranks}"]
    answers = question.path.with_suffix(f".{question.what}.answer")
    try:
        subprocess.run(
            [sys.executable, *launcher, "-m", __name__, question.what, str(question.path), str(answers)],
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
    said = answered(what, path)
    answers.with_suffix(f".{os.environ['RANK']}").write_text(json.dumps(said), encoding="utf-8")
