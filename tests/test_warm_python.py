"""A fork of a warm Python does what a new process does, and what it cannot do goes to a new process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.warm_python import python_environment, run_python

pytestmark = pytest.mark.torch

IS_WARM = "import sys; print('torch' in sys.modules)"


def new(*arguments: str, cwd: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=python_environment(),
        input=said,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "text",
    [
        "import os, sys; print(__name__, sys.argv, sys.path[0], os.getcwd(), sys.stdin.read(), sys.stdout.isatty())",
        "import sys; print(__file__, __spec__, __package__, __loader__.name, sys.modules['__main__'].__file__)",
        "raise SystemExit(7)",
        "raise KeyboardInterrupt",
        "def f(): 1 / 0\nf()",
        "import os; print('lost'); os._exit(3)",
        "import os, signal; print('kept', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit, threading, time; atexit.register(print, 'exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
    ],
)
def test_a_script_ends_and_prints_as_in_a_new_process(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    forked, bare = (start("train.py", "a b", cwd=tmp_path, said="yes\n") for start in (run_python, new))
    assert (forked.returncode, forked.stdout, forked.stderr) == (bare.returncode, bare.stdout, bare.stderr)


@pytest.mark.parametrize(
    "arguments", [["-m", "package", "-m"], ["-m", "package.inner"], ["-c", "print(__name__)", "x"]]
)
def test_a_module_and_a_text_know_themselves_as_in_a_new_process(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    said = "import sys; print(__name__, __package__, __spec__.name, sys.argv, sys.path[0])\n"
    for name in ("__init__", "__main__", "inner"):
        (tmp_path / f"package/{name}.py").write_text(said if name != "__init__" else "", encoding="utf-8")
    forked, bare = run_python(*arguments, cwd=tmp_path), new(*arguments, cwd=tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert forked.returncode == 0


def test_a_module_that_is_missing_is_an_error(tmp_path: Path) -> None:
    ran = run_python("-m", "no_such_module", cwd=tmp_path)
    assert (ran.returncode, "No module named no_such_module" in ran.stderr) == (1, True)


def test_what_an_import_would_see_decides_where_it_runs(tmp_path: Path) -> None:
    printed = {
        name: run_python("-c", IS_WARM, cwd=tmp_path, environment=python_environment(**{name: "1"})).stdout
        for name in ("OTHER", "HF_HUB_OFFLINE_2", "PYTHONOPTIMIZE")
    }
    assert printed == {"OTHER": "True\n", "HF_HUB_OFFLINE_2": "False\n", "PYTHONOPTIMIZE": "False\n"}
    assert run_python("-W", "error", "-c", IS_WARM, cwd=tmp_path).stdout == "False\n"


def test_a_fork_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    changed = "import os, torch; torch.mine = os.environ['MINE'] = '1'; os.chdir('/')"
    assert run_python("-c", changed, cwd=tmp_path).returncode == 0
    seen = "import os, torch; print(hasattr(torch, 'mine'), 'MINE' in os.environ, os.getcwd())"
    assert run_python("-c", seen, cwd=tmp_path).stdout == f"False False {tmp_path}\n"


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(tmp_path: Path) -> None:
    endless = "import os, time\nos.fork()\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        run_python("-c", endless, cwd=tmp_path, timeout=2)
    pids = str(raised.value.output).split()
    assert len(pids) == 2
    limit = time.monotonic() + 20
    while alive := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < limit, alive
    assert run_python("-c", "print(1)", cwd=tmp_path).stdout == "1\n"


def is_running(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


RANK = """
import os, sys, time
import torch
import torch.distributed as dist
if "fail" in sys.argv:
    sys.exit(3) if os.environ["RANK"] == "1" else time.sleep(600)
dist.init_process_group("gloo")
total = torch.tensor(float(os.environ["RANK"]) + 1)
dist.all_reduce(total)
print(f"{os.environ['LOCAL_RANK']} of {dist.get_world_size()}: {total.item()}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def test_ranks_train_together_and_end_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANK, encoding="utf-8")
    ran = run_python("train.py", cwd=tmp_path, ranks=2)
    assert (ran.returncode, sorted(ran.stdout.splitlines())) == (0, ["0 of 2: 3.0", "1 of 2: 3.0"]), ran.stderr
    failed = run_python("train.py", "fail", cwd=tmp_path, ranks=2, timeout=60)
    assert failed.returncode == 1
