"""Commands run with a checkout's own Python: what they see, what is kept of their output, and that they end."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.interpreter import LINES, PythonInterpreter
from tests.upstream.toy_checkout import RUFF, VERSION, make_interpreter, write

ROOT = Path(__file__).parents[3]

# a process whose child holds a pipe open: the pipe ends when the last of them is gone
CHILD = """
import sys, time
pipe = open(sys.argv[1], "w")
print("here", end="", file=pipe, flush=True)
print("yes", end="", file=open(sys.argv[2], "w"), flush=True)
time.sleep(60)
"""
FAMILY = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", CHILD, PIPE, SEEN])
while not os.path.exists(SEEN):
    time.sleep(0.01)
END
"""
INTERRUPTED = """
import signal, sys
from pathlib import Path
from ckpt_surgery.upstream.run.interpreter import (PythonInterpreter)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    PythonInterpreter(Path(sys.executable)).run(["-c", sys.argv[1]], Path.cwd())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return with_python(tmp_path / "transformers")


def with_python(tree: Path, *, ruff: str | None = RUFF, torch: bool = True) -> Path:
    """Write a minimal importable transformers with an interpreter beside it."""
    write(tree / "src/transformers/__init__.py", f"__version__ = {VERSION!r}\n")
    make_interpreter(tree / ".venv", ruff=ruff, torch=torch, site=False)
    return tree


@pytest.fixture
def python(tree: Path) -> PythonInterpreter:
    return PythonInterpreter(tree / ".venv/bin/python")


class Pipe:
    """The reading end of a named pipe, and the file that its writer makes on starting."""

    def __init__(self, folder: Path) -> None:
        self.path, self.seen = folder / "pipe", folder / "seen"
        os.mkfifo(self.path)
        self.end = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def script(self, end: str) -> str:
        """Write a program whose child holds the pipe; it does `end` once the child has begun."""
        words = {"CHILD": repr(CHILD), "PIPE": repr(str(self.path)), "SEEN": repr(str(self.seen)), "END": end}
        return re.sub("|".join(words), lambda match: words[match[0]], FAMILY)

    def read(self) -> bytes:
        """Wait for what has been written; return nothing once the last writer has ended."""
        assert select.select([self.end], [], [], 20)[0], "nobody wrote, and nobody ended"
        return os.read(self.end, 100)


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


def said(python: PythonInterpreter, tree: Path, code: str) -> str:
    return python.run(["-c", code], tree).output


# what a command sees


def test_the_tree_s_own_transformers_is_imported(tree: Path, python: PythonInterpreter) -> None:
    ran = python.run(["-c", "import transformers; print(transformers.__version__)"], tree)
    assert (ran.code, ran.output, ran.ok) == (0, VERSION, True)


def test_a_command_runs_at_the_top_with_the_interpreter_s_programs_first(tree: Path) -> None:
    python = PythonInterpreter(tree / ".venv/bin/python")
    code = "import os, shutil; print('src' in os.listdir(), shutil.which('python'))"
    assert said(python, tree, code) == "True <python>/bin/python"
    assert python.tool("ruff", ["--version"], tree).output == f"ruff {RUFF}"


def test_variables_of_the_caller_s_repository_and_python_are_not_handed_on(
    tree: Path, python: PythonInterpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "PYTHONWARNINGS", "PYTHONSAFEPATH", "PYTEST_ADDOPTS"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("KEPT", "yes")
    code = "import os\nfor name in os.environ:\n    if name.startswith(('GIT_', 'PYT', 'KEPT')): print(name)"
    variables = set(said(python, tree, code).split())
    assert variables == {"KEPT", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUTF8"}


# what is kept


def test_the_last_lines_are_kept_and_the_others_counted(tree: Path, python: PythonInterpreter) -> None:
    lines = said(python, tree, f"for n in range({LINES + 7}): print('line', n)").split("\n")
    assert lines[0] == "... (7 lines before these)"
    assert lines[1:] == [f"line {n}" for n in range(7, LINES + 7)]
    assert said(python, tree, f"for n in range({LINES}): print('line', n)").startswith("line 0\n")


def test_no_path_of_the_machine_is_left(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    python = PythonInterpreter(make_interpreter(tmp_path / "venv"))
    link = tmp_path / "link"
    link.symlink_to(tree)
    code = "import subprocess, sys\nfor place in sys.argv[1:]: print(place, place + '/deep/er.py:3')"
    code += "\nprint(subprocess.__file__)"
    places = [tree, link, tmp_path / "venv", home, tree.with_name("transformers-5")]
    output = python.run(["-c", code, *map(str, places)], link, shown="python it").output
    *lines, other, library = output.split("\n")
    assert lines == [f"{name} {name}/deep/er.py:3" for name in (".", ".", "<python>", "~")]
    assert other.endswith("/transformers-5/deep/er.py:3"), "another folder whose name begins alike"
    assert library == "<python>/lib/python{}.{}/subprocess.py".format(*sys.version_info[:2])
    assert str(tmp_path) not in output


# how a command ends


def test_a_command_that_takes_too_long_is_stopped_with_all_that_it_started(
    tree: Path, python: PythonInterpreter, pipe: Pipe
) -> None:
    ran = python.run(["-c", pipe.script("time.sleep(60)")], tree, timeout=2)
    assert ran.code == 124
    assert ran.output.split("\n")[-1] == "stopped: it had not ended after 2 s"
    assert pipe.read() == b"here"
    assert pipe.read() == b""


def test_an_interrupt_leaves_no_process(tree: Path, pipe: Pipe) -> None:
    script = pipe.script("time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, script],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    limit = time.monotonic() + 20
    while not (words := _available(pipe.end)) and time.monotonic() < limit:
        time.sleep(0.01)
    assert words == b"here"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == b"interrupted\n"
    assert pipe.read() == b""


def _available(end: int) -> bytes:
    try:
        return os.read(end, 100)
    except BlockingIOError:
        return b""


def test_a_command_that_a_signal_ends_says_so(tree: Path, python: PythonInterpreter) -> None:
    ran = python.run(["-c", "import os; print('so far', flush=True); os.kill(os.getpid(), 9)"], tree)
    assert (ran.code, ran.output) == (137, "so far\nkilled by SIGKILL (as the system does when it is out of memory)")


def test_an_interpreter_that_is_gone_is_one_sentence(tree: Path) -> None:
    with pytest.raises(UpstreamError, match=r"`python x\.py` cannot be run: No such file or directory"):
        PythonInterpreter(tree / "gone/python").run(["x.py"], tree)


# which interpreter


def program(path: Path, text: str = "#!/bin/sh\nexit 0\n") -> Path:
    write(path, text).chmod(0o755)
    return path


def test_the_checkout_s_own_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert PythonInterpreter.find(None, tmp_path).path == Path(sys.executable)
    active = program(tmp_path / "active/bin/python")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert PythonInterpreter.find(None, tmp_path).path == active
    plain = program(tmp_path / "venv/bin/python")
    assert PythonInterpreter.find(None, tmp_path).path == plain
    hidden = program(tmp_path / ".venv/bin/python")
    assert PythonInterpreter.find(None, tmp_path).path == hidden
    hidden.chmod(0o644)
    assert PythonInterpreter.find(None, tmp_path).path == plain


def test_the_one_that_is_named_wins_and_may_be_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / ".venv/bin/python")
    named = make_interpreter(tmp_path / "named")
    assert PythonInterpreter.find(named, tmp_path).path == named
    assert PythonInterpreter.find(tmp_path / "named", tmp_path).path == named
    monkeypatch.chdir(tmp_path)
    assert PythonInterpreter.find(Path("named"), tmp_path).path == named


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone", "there is no Python at {}/gone: name the Python"),
        ("empty", "there is no Python at {}/empty/bin/python: name"),
        ("notes", "there is no Python at {}/notes: name"),
    ],
    ids=["nothing there", "a folder without one", "not a program"],
)
def test_what_is_no_python_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").write_text("")
    with pytest.raises(UpstreamError) as caught:
        PythonInterpreter.find(tmp_path / name, tmp_path)
    assert str(caught.value).startswith(words.format(tmp_path))
