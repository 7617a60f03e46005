"""A release is fetched once, whole and unchanged, or refused in one sentence."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import releases
from tests.releases import ReleaseError, fetch, fetch_wheel, pinned_ruff

VERSION = "9.9.9"
FILES = {
    "src/transformers/__init__.py": "",
    "src/transformers/models/toy/modeling_toy.py": "class Toy: ...\n",
    "pyproject.toml": "[tool.ruff]\n",
    "setup.py": 'deps = ["ruff==0.13.1"]\n',
    "tests/test_toy.py": "not wanted\n",
    "PKG-INFO": "not wanted\n",
}
Pin = Callable[[bytes], Path]


def sdist(files: dict[str, str], *extra: tarfile.TarInfo) -> bytes:
    """Make a gzipped tar of `files` below the release's top folder, then the bare members `extra`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"transformers-{VERSION}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in extra:
            tar.addfile(member)
    return buffer.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache of releases; any download fails the test."""

    def no_download(*arguments: object, **options: object) -> None:
        pytest.fail(f"a process was started: {arguments}")

    monkeypatch.setenv("CKPT_SURGERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", no_download)
    return tmp_path / "cache" / "releases"


@pytest.fixture
def pin(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Pin:
    """Return a function that pins an archive's hash as the release 9.9.9 and puts it in the cache."""

    def lay(archive: bytes) -> Path:
        monkeypatch.setitem(releases.SHA256, VERSION, hashlib.sha256(archive).hexdigest())
        cache.mkdir(parents=True, exist_ok=True)
        path = cache / f"transformers-{VERSION}.tar.gz"
        path.write_bytes(archive)
        return path

    return lay


def refusal(version: str = VERSION) -> str:
    """Return the one sentence with which `fetch` refuses."""
    with pytest.raises(ReleaseError) as caught:
        fetch(version)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_the_source_and_its_configuration_are_unpacked(pin: Pin, cache: Path) -> None:
    pin(sdist(FILES))
    source = fetch(VERSION)
    assert source == cache / "transformers-9.9.9" / "src" / "transformers"
    assert (source / "models/toy/modeling_toy.py").read_text() == "class Toy: ...\n"
    assert sorted(p.name for p in source.parent.parent.iterdir()) == [".unpacked", "pyproject.toml", "setup.py", "src"]


def test_an_archive_with_another_hash_is_refused_and_not_unpacked(pin: Pin, cache: Path) -> None:
    archive = pin(sdist(FILES))
    archive.write_bytes(sdist({**FILES, "setup.py": "changed"}))
    assert re.search(r"has the sha256 [0-9a-f]{64}, not the pinned [0-9a-f]{64}: delete it", refusal())
    assert [p.name for p in cache.iterdir()] == [archive.name]


def test_a_half_unpacked_folder_is_refused(cache: Path, pin: Pin) -> None:
    pin(sdist(FILES))
    (cache / "transformers-9.9.9/src/transformers").mkdir(parents=True)
    assert refusal().endswith("is not a whole copy of the release: delete it and run again")


@pytest.mark.parametrize("archive", [b"no archive at all", sdist(FILES)[:150]], ids=["no tar", "cut short"])
def test_an_archive_that_cannot_be_read_is_refused(pin: Pin, archive: bytes) -> None:
    pin(archive)
    assert "cannot be unpacked" in refusal()


def test_a_link_that_leads_out_of_the_release_is_refused(pin: Pin, cache: Path) -> None:
    link = tarfile.TarInfo(f"transformers-{VERSION}/src/transformers/out")
    link.type, link.linkname = tarfile.SYMTYPE, "../../../../../elsewhere"
    pin(sdist(FILES, link))
    assert "cannot be unpacked" in refusal()
    assert not (cache / "transformers-9.9.9").exists()


def test_a_version_without_a_pin_is_refused_and_the_known_ones_are_named(cache: Path) -> None:
    assert refusal("4.0.0").endswith("the pinned releases are 4.52.4, 4.53.0, 4.57.6, 5.0.0, 5.23.0")


def test_no_network_is_one_sentence_that_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPT_SURGERY_CACHE", str(tmp_path))
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    message = refusal("4.57.6")
    assert message.startswith("transformers-4.57.6 could not be downloaded (Could not find a version")
    assert message.endswith(str(tmp_path / "releases/transformers-4.57.6.tar.gz"))
    assert not list((tmp_path / "releases").iterdir())


def test_the_pinned_ruff_is_the_one_that_setup_py_names(pin: Pin) -> None:
    pin(sdist(FILES))
    assert pinned_ruff(VERSION) == "0.13.1"


WHEEL = "toy_models-1.0-py3-none-any"
IN_A_WHEEL = {
    "toy/__init__.py": "",
    "toy/kernel.so": "not wanted",
    "toy_models-1.0.dist-info/METADATA": "Name: toy-models\n",
    "toy_models-1.0.dist-info/RECORD": "toy/__init__.py,,\n",
    "toy_models-1.0.dist-info/WHEEL": "not wanted",
}


def lay_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> Path:
    """Pin a wheel with these files and put it in the cache."""
    cache.mkdir(parents=True)
    path = cache / f"{WHEEL}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    monkeypatch.setitem(releases.WHEEL_SHA256, WHEEL, hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_of_a_wheel_the_source_and_the_metadata_are_unpacked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = lay_wheel(cache, monkeypatch, IN_A_WHEEL)
    folder = fetch_wheel(WHEEL)
    assert folder == cache / WHEEL
    files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    metadata = [f"toy_models-1.0.dist-info/{name}" for name in ("METADATA", "RECORD")]
    assert files == [".unpacked", "toy/__init__.py", *metadata]
    archive.unlink()
    assert fetch_wheel(WHEEL) == folder


def test_a_wheel_with_another_hash_or_that_is_none_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = lay_wheel(cache, monkeypatch, IN_A_WHEEL)
    archive.write_bytes(b"no archive at all")
    with pytest.raises(ReleaseError, match="has the sha256"):
        fetch_wheel(WHEEL)
    monkeypatch.setitem(releases.WHEEL_SHA256, WHEEL, hashlib.sha256(archive.read_bytes()).hexdigest())
    with pytest.raises(ReleaseError, match="cannot be unpacked"):
        fetch_wheel(WHEEL)
    assert [path.name for path in cache.iterdir()] == [archive.name]


def test_a_path_that_leads_out_of_a_wheel_stays_inside(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_wheel(cache, monkeypatch, {**IN_A_WHEEL, "../../escaped.py": "boo"})
    folder = fetch_wheel(WHEEL)
    assert [path for path in cache.parent.rglob("escaped.py") if not path.is_relative_to(folder)] == []


def test_pip_is_asked_for_the_pinned_wheel_whatever_machine_it_runs_on(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(releases.WHEEL_SHA256, "toy-1.0-cp311-cp311-linux_x86_64", "0" * 64)
    commands: list[list[str]] = []

    def refuse(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no network")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(ReleaseError, match=r"\(no network\): .*, or put its wheel at .*linux_x86_64.whl$"):
        fetch_wheel("toy-1.0-cp311-cp311-linux_x86_64")
    words = " ".join(commands[0])
    assert "--only-binary :all:" in words
    assert "--no-build-isolation" not in words
    assert words.endswith("--abi cp311 --platform linux_x86_64 --implementation cp --python-version 311")
