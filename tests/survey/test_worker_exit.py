"""The end of a worker process, read from its exit code and output."""

from __future__ import annotations

import signal

import pytest

from ckpt_surgery.survey.worker_exit import ExitKind, StackFrame, WorkerExit, is_dump_complete, last_line

DUMP = """Fatal Python error: Aborted

Current thread 0x00007f (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979 in _engine_run_backward
  File "/home/me/project/train.py", line 3 in <module>
"""


def test_the_frames_of_the_last_dump_are_read_innermost_first() -> None:
    older = 'Stack (most recent call first):\n  File "/a/b/old.py", line 1 in old\n'
    assert StackFrame.read(older + DUMP) == (
        StackFrame("torch/autograd/graph.py", 979, "_engine_run_backward"),
        StackFrame("project/train.py", 3, "<module>"),
    )
    assert StackFrame.read("no dump") == ()


def test_a_dump_is_read_to_its_last_line_and_frame() -> None:
    assert last_line(f"first\n  the   last\n\n{DUMP}") == "the last"
    assert last_line(DUMP) == ""
    assert len(last_line("x" * 1000)) == 200
    assert is_dump_complete(DUMP)
    assert is_dump_complete("  File ...\n  ...\n")
    assert not is_dump_complete(DUMP[:-10])


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (None, ExitKind.UNKNOWN, "the process ended without a trace"),
        (3, ExitKind.EXITED, "the process exited with code 3"),
        (-signal.SIGSEGV, ExitKind.SIGNALLED, "the process was killed by SIGSEGV"),
        (
            -signal.SIGKILL,
            ExitKind.SIGNALLED,
            "the process was killed by SIGKILL (which a system out of memory also sends)",
        ),
        (-200, ExitKind.SIGNALLED, "the process was killed by signal 200"),
    ],
)
def test_an_exit_code_becomes_a_kind_and_a_clause(code: int | None, kind: ExitKind, text: str) -> None:
    worker_exit = WorkerExit.of_code(code)
    assert (worker_exit.kind, str(worker_exit)) == (kind, text)
