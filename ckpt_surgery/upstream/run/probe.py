"""What the checkout's own Python has: the versions of what its models need, or why it cannot run them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import CommandRun
from ckpt_surgery.upstream.run.interpreter import DATA_MARK, PythonInterpreter

_TIMEOUT = 600.0
_SCRIPT = f"""
import json, os, sys
answer = {{"python": "%d.%d.%d" % sys.version_info[:3]}}
package = "transformers"
try:
    if sys.version_info >= (3, 11):
        import shutil, subprocess
        ruff = shutil.which("ruff")
        if ruff:
            words = subprocess.run([ruff, "--version"], capture_output=True, text=True).stdout.split()
            answer["ruff"] = words[1] if len(words) > 1 else ""
        import transformers
        answer["transformers"] = transformers.__version__
        place = os.path.dirname(os.path.realpath(transformers.__file__))
        if place != os.path.realpath(os.path.join(sys.argv[1], "transformers")):
            answer["elsewhere"] = place
        package = "torch"
        import torch
        answer["torch"] = torch.__version__
except Exception as error:
    answer["error"] = {{
        "package": package,
        "kind": type(error).__name__,
        "message": str(error)[:2000],
        "missing": getattr(error, "name", None),
    }}
print("\\n{DATA_MARK}" + json.dumps(answer))
"""
_PIN = re.compile(r"(?P<pin>\S+) is required for a normal functioning of this module, but found (?P<version>\S+?)\.?$")
_VERSIONS = ("python", "ruff", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class _ImportFailure:
    """The exception that importing transformers or torch raised; `missing` is the module that is not there."""

    package: str
    kind: str
    message: str
    missing: str | None


@dataclass(frozen=True, slots=True)
class _ProbeAnswer:
    """What the script wrote. `elsewhere` is the place of a transformers that is not the tree's."""

    versions: dict[str, str]
    elsewhere: str | None
    error: _ImportFailure | None


def probe(python: PythonInterpreter, tree: Path) -> dict[str, str]:
    """The versions of python, torch, transformers (the tree's own) and, if there is one, ruff.

    Raises UpstreamError if it cannot run the tree's models: too old, a requirement missing or of another version, or
    a transformers that is not the tree's.
    """
    ran = python.run(
        ["-c", _SCRIPT, str(tree / "src")], tree, shown="python -c 'import transformers, torch'", timeout=_TIMEOUT
    )
    answer = _answer(ran)
    # The tree is not named: it may be a worktree that is gone when this is read.
    install = f"install what it needs, in the checkout, with {python.path} -m pip install -e"
    install += " '.[torch,testing,quality]', or name another Python with --python"
    if answer is None:
        last = ran.output.rpartition("\n")[2]
        raise UpstreamError(f"{python.path} cannot import transformers and torch ({last}): {install}")
    if answer.error:
        raise UpstreamError(f"{python.path} {_unmet(answer.error)}: {install}")
    if "transformers" not in answer.versions:
        raise UpstreamError(
            f"{python.path} is Python {answer.versions['python']}, and 3.11 or later is needed: "
            "name another one with --python"
        )
    if answer.elsewhere:
        raise UpstreamError(
            f"{python.path} imports transformers from {answer.elsewhere} and not from the checkout: "
            "name a Python that heeds PYTHONPATH with --python"
        )
    return answer.versions


def _answer(ran: CommandRun) -> _ProbeAnswer | None:
    """What the script wrote; None if it did not come to its end."""
    line = next((line for line in ran.output.splitlines() if line.startswith(DATA_MARK)), None)
    if line is None:
        return None
    data = json.loads(line.removeprefix(DATA_MARK))
    versions = {name: str(data[name]) for name in _VERSIONS if data.get(name)}
    error = _ImportFailure(**data["error"]) if "error" in data else None
    return _ProbeAnswer(versions, data.get("elsewhere"), error)


def _unmet(error: _ImportFailure) -> str:
    """What the interpreter lacks, as a clause."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()] or [error.kind]
    pin = next(filter(None, map(_PIN.search, lines)), None)
    if pin:
        return f"has {pin['version']}, and the checkout needs {pin['pin']}"
    if error.kind == ModuleNotFoundError.__name__ and error.missing:
        return "has no torch" if error.missing == "torch" else f"has no {error.missing}, which {error.package} needs"
    return f"cannot import {error.package} ({error.kind}: {lines[0]})"
