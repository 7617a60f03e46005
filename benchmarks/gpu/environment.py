"""What `make gpu` needs of the machine's own Python: names what is missing and how to bring it. Installs nothing.

Uses the standard library alone.
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import PackageNotFoundError, version

NEEDED = {"torch": ("2.8", "2.13.0"), "transformers": ("4.52.4", "5.23.0"), "rich": ("13.7", "15.0.0")}
"""What the parts cannot do without: the oldest version with which they run, and the one to bring."""


def main() -> int:
    """Say what is missing and what to do. Return 0 where nothing is, 2 otherwise."""
    problems = {name: problem for name in NEEDED if (problem := problem_of(name, installed(name)))}
    if not problems:
        return 0
    wheels = [f"{name}=={NEEDED[name][1]}" for name in problems]
    lines = [
        f"gpu: {', '.join(problems.values())}: on a like machine with a network, run",
        f"  {shlex.join(['python3', '-m', 'pip', 'download', '--dest', 'wheels', *wheels])}",
        "and here, with that folder copied,",
        f"  {shlex.join([sys.executable, '-m', 'pip', 'install', '--no-index', '--find-links', 'wheels', *wheels])}",
    ]
    print("\n".join(lines), file=sys.stderr)
    return 2


def installed(name: str) -> str:
    """Return the version of a package; empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def problem_of(name: str, version: str) -> str:
    """Return what is wrong with a package of this version, empty where it is not installed; empty where nothing is."""
    if not version:
        return f"{name} is not installed"
    oldest = NEEDED[name][0]
    return f"{name} {version} is older than {oldest}" if numbers(version) < numbers(oldest) else ""


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, as far as there are only numbers."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())


if __name__ == "__main__":
    sys.exit(main())
