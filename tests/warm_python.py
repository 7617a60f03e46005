"""Run Python in forks of a process that has imported torch and transformers, which takes seconds of a new process.

A fork differs from a new process in `sys.modules`, and at its end it leaves its modules as they are. Arguments, path,
folder, environment, files, session and `__main__` are its own; threads are waited for, and exit functions run. What a
test says about imports, or about how a process is interrupted, needs a new one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from tests.forked_ranks import fork_ranks

ROOT = Path(__file__).resolve().parents[1]
PRELOAD = (
    "torch",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "ckpt_surgery.cli.main",
    "ckpt_surgery.guarding.takeover",
    "ckpt_surgery.planning.fit",
    "rich.table",
)
_READ_BY_IMPORTS = ("ACCELERATE_", "CUDA", "HF_", "LD_", "MKL_", "OMP_", "PYTHON", "TORCH", "TRANSFORMERS_", "USE_")
"""How variables begin that decide what an import does. A command with other values runs in a new process."""
_START = "import atexit; atexit.register(lambda: end()); from tests.warm_python import end, main; main()"
"""The exit function that is registered first runs last."""


def python_environment(**more: str) -> dict[str, str]:
    """Return the variables of this process for a Python with one thread that finds the project, and `more`."""
    path = dict.fromkeys([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **more}


def run_python(
    *arguments: str,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    said: str = "",
    timeout: float = 280,
    ranks: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, in a fork if that is like a new process; `said` is what it reads.

    With `ranks` there are so many of it, as under torchrun.

    Raises TimeoutExpired after `timeout` seconds, when all that the command started has been killed.
    """
    environment = python_environment() if environment is None else environment
    warm = _warm_python()
    if warm.fits(arguments, environment):
        return warm.run(arguments, cwd, environment, said, timeout, ranks)
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks)) if ranks else ()
    command = [sys.executable, *launcher, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, input=said, capture_output=True, text=True, timeout=timeout, check=False
    )


class WarmPython:
    """The process that is forked. It ends with this process, however that ends."""

    def __init__(self, environment: Mapping[str, str], python: str = sys.executable) -> None:
        self.environment = environment
        self._channel, theirs = Pipe()
        self._process = subprocess.Popen(
            [python, "-c", _START, str(theirs.fileno())],
            cwd=ROOT,
            env=self.environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        atexit.register(self._close, os.getpid())

    def fits(self, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Tell whether a fork can stand in for a new process with these arguments and variables."""
        known = arguments[0] in ("-m", "-c") or not arguments[0].startswith("-")
        return known and _for_imports(environment) == _for_imports(self.environment)

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        said: str = "",
        timeout: float = 280,
        ranks: int = 0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a fork, and wait for it."""
        with tempfile.TemporaryDirectory() as folder:
            given, out, error = (Path(folder, name) for name in ("in", "out", "err"))
            given.write_text(said, encoding="utf-8")
            streams = [str(given), str(out), str(error)]
            self._channel.send((tuple(arguments), str(cwd), dict(environment), streams, ranks))
            child = self._channel.recv()
            try:
                in_time = self._channel.poll(timeout)
            finally:
                with suppress(ProcessLookupError):  # what is left of its session
                    os.killpg(child, signal.SIGKILL)
                code = self._channel.recv()
            printed, complained = (path.read_text(encoding="utf-8") for path in (out, error))
        if not in_time:
            raise subprocess.TimeoutExpired(list(arguments), timeout, printed, complained)
        return subprocess.CompletedProcess(list(arguments), code, printed, complained)

    def _close(self, owner: int) -> None:
        if os.getpid() == owner:
            self._process.kill()
            self._process.wait()


@cache
def _warm_python() -> WarmPython:
    return WarmPython(python_environment())


def _for_imports(environment: Mapping[str, str]) -> dict[str, str]:
    known = {name: value for name, value in environment.items() if name.startswith(_READ_BY_IMPORTS)}
    known.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch sets it in a process that imports its compiler
    return known


_exit_code = 0


def main() -> None:
    """Serve the pipe whose number is the argument; in a fork, run the command."""
    global _exit_code
    try:
        exec(*serve(Connection(int(sys.argv[1]))))
    except SystemExit as error:
        _exit_code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except BaseException as error:
        _exit_code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        raise


def end() -> None:
    """End this process without taking torch apart, which takes longer than most commands do."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if _exit_code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(_exit_code & 0xFF)


def serve(channel: Connection) -> tuple[CodeType, dict[str, Any]]:
    """Fork for each request; return, in the forks alone, what they execute."""
    for name in PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if len(os.listdir("/proc/self/task") if sys.platform == "linux" else [None]) > 1:
        raise RuntimeError("an import has started a thread, which a fork would not have")
    while True:
        try:
            arguments, cwd, environment, streams, ranks = channel.recv()
        except EOFError:
            os._exit(0)
        child = os.fork()
        if child == 0:
            break
        channel.send(child)
        channel.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.setsid()
    channel.close()
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    tempfile.tempdir = None
    importlib.invalidate_caches()
    if ranks:
        fork_ranks(ranks)
    return _become(arguments)


def _become(arguments: Sequence[str]) -> tuple[CodeType, dict[str, Any]]:
    """Give this process the `__main__`, path and arguments of a command, and return its code with its globals."""
    starter = vars(sys.modules["__main__"])

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while trace is not None and any(trace.tb_frame.f_globals is ours for ours in (starter, globals())):
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    sys.excepthook = show
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__cached__=None)
    first, *rest = arguments
    if first == "-c":
        text, *rest = rest
        sys.path[0], sys.argv[:] = "", ["-c", *rest]
        return compile(text, "<string>", "exec"), vars(main)
    if first == "-m":
        name, *rest = rest
        sys.path[0] = str(Path.cwd())
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
        if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
            sys.exit(f"{sys.executable}: No module named {name}")
        main.__spec__, main.__package__, main.__loader__, main.__file__ = spec, spec.parent, spec.loader, spec.origin
        sys.argv[:] = [spec.origin, *rest]
        code = spec.loader.get_code(spec.name)
        assert code is not None
        return code, vars(main)
    file = str(Path.cwd() / first)
    sys.path[0], sys.argv[:] = str(Path(file).resolve().parent), [first, *rest]
    main.__loader__, main.__file__ = SourceFileLoader("__main__", file), file
    return compile(Path(file).read_bytes(), file, "exec"), vars(main)
