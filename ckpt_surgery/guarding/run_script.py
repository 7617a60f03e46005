"""Run a user's script or module as Python does: with its arguments, path, `__main__`, traceback and exit code."""

from __future__ import annotations

import builtins
import importlib.util
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from ckpt_surgery.errors import OptionError

Explain = Callable[[BaseException], None]
"""Adds notes to the error that ends a script, before it is shown."""


def run_script(path: str, arguments: Sequence[str], explain: Explain) -> int:
    """Run a file; return its exit code, or minus the signal that ended it. Raises OptionError if it cannot be read."""
    if not path:
        raise OptionError("the script's path is empty, as from an unset variable: name a Python file")
    place = Path(path)
    if place.suffix == ".ipynb":
        raise OptionError(
            f"{path} is a notebook: put `with guard(model):` around its training, or run what "
            "`jupyter nbconvert --to script` makes of it"
        )
    try:
        source = place.read_bytes()
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror or error}: give a Python script, or -m and a module") from None
    file = str(Path.cwd() / place)  # `__file__` is absolute, as in Python; sys.argv keeps the path as typed
    sys.path[0] = str(place.resolve().parent)
    return _run(lambda: compile(source, file, "exec"), file, None, [path, *arguments], explain)


def run_module(name: str, arguments: Sequence[str], explain: Explain) -> int:
    """Run a module, or a package's `__main__`, as `run_script` does. Raises OptionError if there is none."""
    sys.path.insert(0, str(Path.cwd()))
    spec = None
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(name)
        is_package = found is not None and found.submodule_search_locations is not None
        spec = importlib.util.find_spec(f"{name}.__main__") if is_package else found
    loader = getattr(spec, "loader", None)
    if spec is None or not hasattr(loader, "get_code") or isinstance(loader, ExtensionFileLoader):
        raise OptionError(f"there is no module {name} to run: give its dotted name, as after `python -m`")
    file = spec.origin or name
    return _run(partial(spec.loader.get_code, spec.name), file, spec, [file, *arguments], explain)  # type: ignore[union-attr]


def _run(code: Callable[[], CodeType], file: str, spec: ModuleSpec | None, argv: list[str], explain: Explain) -> int:
    main = ModuleType("__main__")
    main.__dict__.update(__file__=file, __spec__=spec, __builtins__=builtins, __cached__=None)
    main.__loader__ = SourceFileLoader("__main__", file) if spec is None else spec.loader
    if spec is not None:
        main.__package__ = spec.parent
    sys.modules["__main__"] = main
    sys.argv[:] = argv
    try:
        exec(code(), main.__dict__)
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            return (exit_.code or 0) & 0xFF
        print(exit_.code, file=sys.stderr)
        return 1
    except BaseException as error:
        explain(error)
        trace: TracebackType | None = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:  # leave out our own frames
            trace = trace.tb_next
        sys.stdout.flush()
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0
