"""The sources of released transformers versions, and of other packages that rules are tried on.

Fetched from PyPI once, checked against a pin, unpacked into a cache. Nothing here imports or runs what it unpacked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

SHA256 = {
    "4.52.4": "aff3764441c1adc192a08dba49740d3cbbcb72d850586075aed6bd89b98203e6",
    "4.53.0": "f89520011b4a73066fdc7aabfa158317c3934a22e3cd652d7ffbc512c4063841",
    "4.57.6": "55e44126ece9dc0a291521b7e5492b572e6ef2766338a610b9ab5afbb70689d3",
    "5.0.0": "5f5634efed6cf76ad068cc5834c7adbc32db78bbd6211fb70df2325a9c37dec8",
    "5.23.0": "19d647a4d5d903a7c644ca5cde2d86efc3dde7d8c687ae7988806ff2205efa71",
}
"""The sha256 of each release's source distribution on PyPI, in hexadecimal."""

OTHER_SHA256 = {
    ("accelerate", "1.15.0"): "5654f8c5eaa0d4fa68b33e287a97765da6849bf6d51dcac874e73fbbddfb6134",
    ("trl", "1.12.0"): "494ec6cfd07097bb8116cc7bec299b067dd765d1c19ed3eca2d874a29979f229",
}
"""The same for other packages, by name and version."""

_SOURCES = {"accelerate": "src/accelerate", "transformers": "src/transformers", "trl": "trl"}
"""Where a package's source lies in its source distribution."""

STAMP = ".unpacked"
CACHE_VARIABLE = "CKPT_SURGERY_CACHE"


class ReleaseError(RuntimeError):
    """A release could not be had. The message is one sentence for the user: what, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """One pinned release and its places in the cache."""

    version: str
    sha256: str
    cache: Path
    package: str = "transformers"

    @property
    def name(self) -> str:
        """What the release calls its own top folder."""
        return f"{self.package}-{self.version}"

    @property
    def source(self) -> str:
        """Where its source lies in that folder."""
        return _SOURCES[self.package]

    @property
    def folder(self) -> Path:
        """Where the release is unpacked."""
        return self.cache / self.name

    @property
    def archive(self) -> Path:
        """Where a source distribution put there by hand is looked for, for machines without a network."""
        return self.cache / f"{self.name}.tar.gz"


def fetch(version: str) -> Path:
    """Return the folder `src/transformers` of a release, downloading and unpacking it the first time.

    The release's `pyproject.toml` and `setup.py` lie two levels above it. The cache is the user's, or the
    folder named by the environment variable CKPT_SURGERY_CACHE. The files are shared: copy before changing them.

    Raises ReleaseError for a version without a pin, a failed download, a wrong hash, or a broken cache.
    """
    return _fetched(_release(version))


def fetch_package(package: str, version: str) -> Path:
    """Return the source folder of a pinned release of another package (`trl`), in the same way.

    Raises ReleaseError as `fetch` does.
    """
    if (package, version) not in OTHER_SHA256:
        pinned = ", ".join(" ".join(pin) for pin in OTHER_SHA256)
        raise ReleaseError(f"{package} {version} has no pinned hash: the pinned packages are {pinned}")
    return _fetched(Release(version, OTHER_SHA256[package, version], _cache(), package))


def _fetched(release: Release) -> Path:
    if not release.folder.exists():
        try:
            release.cache.mkdir(parents=True, exist_ok=True)
            _install(release)
        except OSError as error:
            raise ReleaseError(
                f"{release.name} could not be kept in {release.cache} ({error.strerror or error}): "
                f"make room there, or name another folder in {CACHE_VARIABLE}"
            ) from error
    _require_whole(release)
    return release.folder / release.source


def pinned_ruff(version: str) -> str:
    """Return the version of ruff that a release's own `setup.py` pins, such as "0.14.10"."""
    setup = fetch(version).parent.parent / "setup.py"
    pin = re.search(r"""["']ruff==([0-9][\w.]*)["']""", setup.read_text(encoding="utf-8"))
    if pin is None:
        raise ReleaseError(f"{setup} pins no version of ruff: this release has to be formatted by hand")
    return pin[1]


def _release(version: str) -> Release:
    if version not in SHA256:
        raise ReleaseError(f"transformers {version} has no pinned hash: the pinned releases are {', '.join(SHA256)}")
    return Release(version, SHA256[version], _cache())


def _cache() -> Path:
    """The folder that holds all releases."""
    cache = os.environ.get(CACHE_VARIABLE) or user_cache_dir("ckpt_surgery", appauthor=False)
    return Path(cache).expanduser().absolute() / "releases"


def _install(release: Release) -> None:
    """Put the unpacked release in its place in one step, so that nobody ever sees half of it."""
    with tempfile.TemporaryDirectory(prefix=f".{release.name}-", dir=release.cache) as scratch:
        archive = release.archive if release.archive.exists() else _download(release, Path(scratch))
        _require_hash(archive, release)
        tree = Path(scratch) / "tree"
        _unpack(archive, tree, release)
        (tree / STAMP).write_text(f"{release.sha256} {_count(tree)}\n", encoding="ascii")
        try:
            tree.replace(release.folder)
        except OSError:
            # Another process was faster; `fetch` checks what it left.
            if not release.folder.is_dir():
                raise


def _download(release: Release, folder: Path) -> Path:
    """Have pip fetch the source distribution. pip checks the hash before it runs any of the release's code."""
    wish = folder / "requirement.txt"
    wish.write_text(f"{release.package}=={release.version} --hash=sha256:{release.sha256}\n", encoding="ascii")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-binary", release.package, "--require-hashes", "-r", str(wish), "-d", str(folder)]
    if importlib.util.find_spec("setuptools"):
        # pip asks the release for its metadata; with the setuptools at hand that takes 1 s, isolated 13 s.
        command.append("--no-build-isolation")
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    archive = folder / release.archive.name
    if run.returncode or not archive.exists():
        raise ReleaseError(
            f"{release.name} could not be downloaded ({_reason(run.stderr)}): check the network, "
            f"or put its source distribution at {release.archive}"
        )
    return archive


def _reason(stderr: str) -> str:
    """The one line of pip's messages that says why."""
    if "DO NOT MATCH THE HASHES" in stderr:
        return "the package index offers a file with another hash than the pinned one"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip gave no reason"])[0]


def _require_hash(archive: Path, release: Release) -> None:
    with archive.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != release.sha256:
        raise ReleaseError(
            f"{archive} has the sha256 {actual}, not the pinned {release.sha256}: delete it and run again"
        )


def _unpack(archive: Path, tree: Path, release: Release) -> None:
    """Unpack the parts that are needed; links and paths that lead out of `tree` are refused."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(tree, members=_wanted(tar, release), filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ReleaseError(f"{archive} cannot be unpacked ({error}): delete it and run again") from error
    if not (tree / release.source).is_dir():
        raise ReleaseError(f"{archive} holds no {release.name}/{release.source}: it is not that release's source")


def _wanted(tar: tarfile.TarFile, release: Release) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        inner = member.name.removeprefix(f"{release.name}/")
        if inner.startswith(f"{release.source}/") or inner in ("pyproject.toml", "setup.py"):
            yield member.replace(name=inner, deep=False)


def _require_whole(release: Release) -> None:
    """Refuse a folder that was not unpacked here to the end, or has lost files since."""
    try:
        sha256, count = (release.folder / STAMP).read_text(encoding="ascii").split()
        whole = sha256 == release.sha256 and int(count) == _count(release.folder)
    except (OSError, ValueError):
        whole = False
    if not whole:
        raise ReleaseError(f"{release.folder} is not a whole copy of the release: delete it and run again")


def _count(tree: Path) -> int:
    """How many Python files there are below `tree`; compiled ones come and go and do not count."""
    return sum(1 for _ in tree.rglob("*.py"))
