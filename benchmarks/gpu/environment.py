"""An environment for `make gpu`, on a machine with nothing but Python: prints the path of its interpreter.

Uses the standard library alone. What the machine's own Python has, a torch with CUDA above all, is used as it is;
what is missing is installed beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-gpu"
NEEDED = {
    "torch": "torch==2.13.0",
    "transformers": "transformers==5.23.0",
    "libcst": "libcst>=1.8",
    "matplotlib": "matplotlib>=3.8",
    "packaging": "packaging>=24.0",
    "platformdirs": "platformdirs>=4.2",
    "pytest": "pytest>=8.2",
    "rich": "rich>=13.7",
    "typer": "typer>=0.15",
}
"""What the benchmarks and the tests marked `gpu` import, and what pip is asked for where it is missing or too old."""
OLDEST = {"torch": (2, 13), "transformers": (5, 23)}
"""The oldest versions with which they run."""
_HAS = """
import importlib.metadata as metadata, importlib.util as util, json, sys
print(json.dumps({n: metadata.version(n) if util.find_spec(n) else "" for n in sys.argv[1:]}))
"""


def main() -> int:
    """Print an interpreter that has all: this one, or that of an environment for it. Returns 0, or 2 on failure."""
    if not missing_in(sys.executable):
        print(sys.executable)
        return 0
    python = FOLDER / "bin" / "python"
    if not python.is_file():
        _say(f"making {FOLDER.name}")
        venv.create(FOLDER, system_site_packages=True, with_pip=True)
    if missing := missing_in(python):
        _say(f"installing {', '.join(missing)}")
        command = [str(python), "-m", "pip", "install", "--quiet", *(NEEDED[name] for name in missing)]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            _say(f"pip could not install {', '.join(missing)}: install them for {sys.executable}, then run this again")
            return 2
    print(python)
    return 0


def missing_in(python: str | Path) -> list[str]:
    """The packages that an interpreter does not have, or not new enough."""
    has = json.loads(subprocess.check_output([python, "-c", _HAS, *NEEDED], text=True))
    return [name for name, version in has.items() if is_missing(name, version)]


def is_missing(name: str, version: str) -> bool:
    """Whether a package with this version, empty where it is not installed, has to be installed."""
    numbers = tuple(int(number) for number in version.split("+")[0].split(".")[:2] if number.isdigit())
    return numbers < OLDEST.get(name, (0,))


def _say(text: str) -> None:
    print(f"gpu: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
