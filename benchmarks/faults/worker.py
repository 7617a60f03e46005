"""One question on one script, asked in a fork of a process that has imported torch, or in as many as train."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.faults import judges, script

PRELOADED = [
    judges.__name__,
    "torch._inductor.compile_fx",
    "transformers.models.llama.modeling_llama",
    "peft",
    "ckpt_surgery.cli.main",
    "ckpt_surgery.codemods",
    "ckpt_surgery.guarding.takeover",
    "ckpt_surgery.measure.verify",
]
"""What takes a part of a second, or seconds, to import."""
PATIENCE = 120
"""The seconds that one question may take."""
GRACE = 20
"""The seconds that the other ranks have once one has answered: it may have left them waiting."""
_FORKS = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a script: `symptom`, the symptom after a cure (`wrap`, `apply`), or a judge by name."""

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
    """Return the answer to a question, with the seconds that it took.

    Where several ranks train, the first answer that shows or finds something counts.
    """
    began = time.perf_counter()
    ranks = 1 if question.what in judges.ONCE else question.ranks
    answers = _forked(question, _environments(ranks) if ranks > 1 else [{}])
    told = [each for each in answers if each.get("shown") or each.get("found")]
    whole = [each for each in answers if "crashed" not in each]
    answer = [*told, *whole, *answers][0]
    return {**answer, "seconds": round(time.perf_counter() - began, 2)}


def _environments(ranks: int) -> list[dict[str, str]]:
    """Return what torchrun tells each rank."""
    port = random.randrange(20_000, 30_000)  # below those that a system gives to whoever asks for any
    group = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    places = [{"RANK": rank, "LOCAL_RANK": rank, **group} for rank in range(ranks)]
    return [{name: str(value) for name, value in place.items()} for place in places]


def _forked(question: Question, environments: Sequence[Mapping[str, str]]) -> list[Mapping[str, Any]]:
    """Ask in a process for each environment. Once one has answered, the others get a little longer."""
    processes: dict[Connection, BaseProcess] = {}
    for environment in environments:
        receiver, sender = _FORKS.Pipe(duplex=False)
        processes[receiver] = _FORKS.Process(target=_send, args=(question, environment, sender))
        processes[receiver].start()
        sender.close()
    answers: dict[Connection, Mapping[str, Any]] = {}
    deadline = time.monotonic() + PATIENCE
    while waiting := [receiver for receiver in processes if receiver not in answers]:
        readable = wait(waiting, max(deadline - time.monotonic(), 0))
        ready = [receiver for receiver in waiting if receiver in readable]
        for receiver in ready:
            answers[receiver] = _received(receiver)
            deadline = min(deadline, time.monotonic() + GRACE)
        if not ready:
            answers |= {receiver: {"crashed": f"took more than {PATIENCE} s"} for receiver in waiting}
    for process in processes.values():
        process.kill()
        process.join()
    return [answers[receiver] for receiver in processes]


def _received(receiver: Any) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = receiver.recv()
        return answer
    except EOFError:
        return {"crashed": "its process died"}


def _send(question: Question, environment: Mapping[str, str], sender: Connection) -> None:
    os.environ.update(environment)
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
