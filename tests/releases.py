"""The sources of released transformers versions, and of other packages that rules are tried on.

Source distributions and wheels, fetched from PyPI once, checked against a pin, unpacked into a cache. Nothing here
imports or runs what it unpacked.
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
import zipfile
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

WHEEL_SHA256 = {
    "adapters-1.3.0-py3-none-any": "c0620b1b98df4af3876aa1e053ba43d0a19d82e62fc6a3ebc67d158183e07919",
    "axolotl-0.19.0-py3-none-any": "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
    "certifi-2026.10.18-py3-none-any": "73191c47aaa79da394e8fee2dbc2ec827432cab56311122c9e47abf79e390f62",
    "charset_normalizer-3.5.2-py3-none-any": "b6b751274acb69d77b3323d6b7dbaa3c7fdfc1eb829b7eb61d262f32e1af9685",
    "diffusers-0.42.1-py3-none-any": "9154faa704ce00e0b77f568e0d64786064368528aab5fc14eeea92f87d788014",
    "fla_core-0.6.0-py3-none-any": "b0708b70e0b119cd58a0a5146ea56cb175cef6ed969d8ac60267e3e077ce3ebd",
    "flash_linear_attention-0.6.0-py3-none-any": "6dec9735f8454523c13553622e98aff30152dde6586b4ac7d88010fbb7a06b5f",
    "lerobot-0.4.4-py3-none-any": "e53800ead8216861540ad3aebaf12e3cf87a399b3c1f234eeead33716c9c24fd",
    "llamafactory-0.9.5-py3-none-any": "10776e9b259798bf65f6c5343f6298f0302e92e9cd47472abe29eef69e286c6a",
    "llava_torch-1.2.2.post1-py3-none-any": "94a25ba4ffd67b3f55b022e7e27c5b4175fc95e6a8c3a1f5b334dd517f128314",
    "ms_swift-4.6.0-py3-none-any": "8888ca2b88681aeabffc981f289ffc3e4fa6e4da7f83e885114ec0edbe8d99ea",
    "open_clip_torch-3.3.0-py3-none-any": "c549ad5ed6bfc119cc11105033c0a2b9d7a2a4afeb40a58a09aab3da1a0043ce",
    "peft-0.21.2-py3-none-any": "106ab6077ff72c54d21577f9af5970e34bac7582cb14209f7b2b511e322a4eae",
    "requests-2.34.2-py3-none-any": "2a0d60c172f83ac6ab31e4554906c0f3b3588d37b5cb939b1c061f4907e278e0",
    "sentence_transformers-6.2.0-py3-none-any": "ffb51ccfef65427cfa61776d0eeeb257600b0099cf0c7533ae9a6856d31e4665",
    "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64": (
        "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"
    ),
    "timm-1.0.31-py3-none-any": "5bd50f7d0fe6d09bf9285ac2523234a1b7e6bf075c0be3e7aed09139fcb617c7",
    "torchtune-0.6.1-py3-none-any": "bcbc4ee9774b5c5829a5ff13df851e0b0e32416c018af8db53faa3472ac256e7",
    "trl-1.16.0-py3-none-any": "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
    "unsloth_zoo-2026.10.9-py3-none-any": "f68e0576b0e9bd2ef85f19bf665132c576b52ee4df923fbb16c81538a3cde676",
    "urllib3-2.8.0-py3-none-any": "0cf3cae568d36aa9576b28dfb35f11328f1cb974ca7647d9475ebb86c75ac6e3",
    "x_transformers-2.31.10-py3-none-any": "40099be7b1f3043ffba67381288a35bdd932decf338dc69a01eb8024bea34d24",
    "xtuner-0.2.0-py3-none-any": "5b59e7e194d78579c3d00a9a68ea7195472869d7a4601d692ce200224ac86443",
}
"""The same for wheels, by file name without the ending."""

_SOURCES = {"accelerate": "src/accelerate", "transformers": "src/transformers", "trl": "trl"}
"""Where a package's source lies in its source distribution."""

_WANTED_OF_WHEEL = (".py", ".dist-info/METADATA", ".dist-info/RECORD")

STAMP = ".unpacked"
CACHE_VARIABLE = "CKPT_SURGERY_CACHE"


class ReleaseError(RuntimeError):
    """A release that could not be had. The message is one sentence for the user: what, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """One pinned release and its places in the cache."""

    version: str
    sha256: str
    cache: Path
    package: str = "transformers"
    tags: str = ""
    """The interpreter, ABI and platform of a wheel ("py3-none-any"); empty for a source distribution."""

    @property
    def name(self) -> str:
        """The name of its archive, without the ending; a source distribution calls its own top folder so."""
        return "-".join(filter(None, (self.package, self.version, self.tags)))

    @property
    def source(self) -> str:
        """Where its source lies in that folder; a wheel has its packages at the top."""
        return "" if self.tags else _SOURCES[self.package]

    @property
    def folder(self) -> Path:
        """Where the release is unpacked."""
        return self.cache / self.name

    @property
    def archive(self) -> Path:
        """Where an archive put there by hand is looked for, for machines without a network."""
        return self.cache / f"{self.name}{'.whl' if self.tags else '.tar.gz'}"


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


def fetch_wheel(name: str) -> Path:
    """Return the folder that holds the packages of a pinned wheel, in the same way.

    `name` is that of the file without its ending, a key of WHEEL_SHA256. Of the wheel's files only Python's and the
    metadata are unpacked.

    Raises ReleaseError as `fetch` does.
    """
    if name not in WHEEL_SHA256:
        raise ReleaseError(f"{name} has no pinned hash: the pinned wheels are {', '.join(WHEEL_SHA256)}")
    package, version, tags = name.split("-", 2)
    return _fetched(Release(version, WHEEL_SHA256[name], _cache(), package, tags))


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
    """Return the folder that holds all releases."""
    cache = os.environ.get(CACHE_VARIABLE) or user_cache_dir("ckpt_surgery", appauthor=False)
    return Path(cache).expanduser().absolute() / "releases"


def _install(release: Release) -> None:
    """Move the unpacked release to its place in one step, so that nobody ever sees half of it."""
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
    """Have pip fetch the archive. pip checks the hash before it runs any of the release's code."""
    wish = folder / "requirement.txt"
    wish.write_text(f"{release.package}=={release.version} --hash=sha256:{release.sha256}\n", encoding="ascii")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--require-hashes", "-r", str(wish), "-d", str(folder), *_kind(release)]
    if not release.tags and importlib.util.find_spec("setuptools"):
        # pip asks the release for its metadata; with the setuptools at hand that takes 1 s, isolated 13 s.
        command.append("--no-build-isolation")
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    archive = folder / release.archive.name
    if run.returncode or not archive.exists():
        raise ReleaseError(
            f"{release.name} could not be downloaded ({_reason(run.stderr)}): check the network, "
            f"or put its {'wheel' if release.tags else 'source distribution'} at {release.archive}"
        )
    return archive


def _kind(release: Release) -> list[str]:
    """Describe the release's archive to pip, whatever machine it runs on."""
    if not release.tags:
        return ["--no-binary", release.package]
    python, abi, platform = release.tags.split("-")
    options = ["--only-binary", ":all:", "--ignore-requires-python", "--abi", abi, "--platform", platform]
    return [*options, "--implementation", python[:2], "--python-version", python[2:]]


def _reason(stderr: str) -> str:
    """Return the one line of pip's messages that says why."""
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
        if release.tags:
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(tree, [name for name in wheel.namelist() if name.endswith(_WANTED_OF_WHEEL)])
        else:
            with tarfile.open(archive, "r:gz") as tar:
                tar.extractall(tree, members=_wanted(tar, release), filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
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
    """Count the Python files below `tree`, without compiled ones, which come and go."""
    return sum(1 for _ in tree.rglob("*.py"))
