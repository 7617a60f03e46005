"""Block inputs in files: gradients are the same, nothing is left behind, a full disk is survived."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from ckpt_surgery.errors import SurgeryError, SurgeryWarning
from ckpt_surgery.runtime.offload import disk_transport
from ckpt_surgery.runtime.offload.disk_transport import (
    DiskTransport,
    MappedFiles,
    large_temporary_folder,
    writable_folder,
)
from ckpt_surgery.runtime.offload.offloader import Offloader
from tests.runtime.streams import instead_of_the_processor
from tests.zoo.offload_toys import (
    BLOCKS,
    INPUT_BYTES,
    Function,
    backward,
    blocks,
    first,
    forward,
    gradients,
    same,
    trained,
)

pytestmark = [
    pytest.mark.both,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself"),
]

CPU = torch.device("cpu")
MOVED = BLOCKS - 1
LINUX = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")


def mapped(folder: Path) -> int:
    """Count the files of this folder that the process has mapped."""
    return Path("/proc/self/maps").read_text().count(f"{folder}/")


@pytest.mark.parametrize("streams", [False, True], ids=["without streams", "with streams"])
def test_gradients_are_those_without_offload(streams: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gradients()
    if streams:
        instead_of_the_processor(monkeypatch)
    offloader = Offloader(transport := DiskTransport(tmp_path), minimum_bytes=0)
    for _ in range(3):
        assert same(gradients(offloader), expected)
    assert (offloader.stats.tensors, offloader.stats.no_room) == (3 * MOVED, 0)
    assert transport.pool.bytes == MOVED * INPUT_BYTES, "files are used again"


@LINUX
def test_inputs_are_in_files_without_names_until_the_graph_ends(tmp_path: Path) -> None:
    offloader = Offloader(DiskTransport(tmp_path), minimum_bytes=0)
    loss = forward(blocks(), first(), offloader)
    assert mapped(tmp_path) == MOVED
    assert not [*tmp_path.iterdir()]
    offloader.release()
    assert mapped(tmp_path) == MOVED, "the graph needs them"
    backward(loss)
    del loss
    assert mapped(tmp_path) == 0


@LINUX
@pytest.mark.parametrize("way", ["release", "garbage", "error"])
def test_nothing_is_mapped_at_the_end(way: str, tmp_path: Path) -> None:
    offloader: Offloader | None = Offloader(DiskTransport(tmp_path), minimum_bytes=0)
    gradients(offloader)
    assert mapped(tmp_path) == MOVED
    if way == "release" and offloader is not None:
        offloader.release()
    elif way == "error":
        with pytest.raises(ZeroDivisionError):
            forward([*blocks(), Function(lambda hidden: hidden / (1 // 0))], first(), offloader)
        gc.collect()
        assert mapped(tmp_path) == MOVED + 1, "to be used again"
    offloader = None
    gc.collect()
    assert mapped(tmp_path) == 0


KILLED = """
import os, signal, sys
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.offloader import Offloader
from tests.zoo.offload_toys import blocks, first, forward
loss = forward(blocks(), first(), Offloader(DiskTransport(sys.argv[1]), minimum_bytes=0))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_process_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not [*tmp_path.iterdir()]


def test_on_a_full_disk_inputs_stay_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [2]

    def reserve(file: Any, size: int) -> None:
        if not room[0]:
            raise OSError(28, "No space left on device")
        room[0] -= 1

    monkeypatch.setattr(disk_transport, "_reserve", reserve)
    monkeypatch.setattr(mmap, "mmap", lambda number, size, **options: bytearray(size))
    offloader = Offloader(DiskTransport(tmp_path), minimum_bytes=0)
    with pytest.warns(SurgeryWarning, match="takes no more block inputs .No space left on device.: they ") as caught:
        steps = trained(offloader, 2)
    assert all(same(step, gradients()) for step in steps)
    assert len([w for w in caught if "no more" in str(w.message)]) == 1
    assert (offloader.stats.tensors, offloader.stats.no_room) == (4, 2 * MOVED - 4)


def test_idle_files_make_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = MappedFiles(str(tmp_path))

    def reserve(file: Any, size: int) -> None:
        if pool.bytes:
            raise OSError(28, "No space left on device")
        os.truncate(file.fileno(), size)

    monkeypatch.setattr(disk_transport, "_reserve", reserve)
    buffer = pool.take(100, CPU)
    assert buffer is not None
    pool.give_back(buffer)
    del buffer
    larger = pool.take(1000, CPU)
    assert larger is not None
    assert pool.bytes == 1000


def cannot_reserve(*arguments: Any) -> None:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


@pytest.mark.parametrize("system", ["has the call", "has no such call", "has it not for this file system"])
def test_room_is_reserved_before_anything_is_written(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "no" in system.split():
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    elif "not" in system:
        monkeypatch.setattr(os, "posix_fallocate", cannot_reserve, raising=False)
    with (tmp_path / "file").open("w+b") as file:
        disk_transport._reserve(file, 3 * 2**20 + 5)
        status = os.fstat(file.fileno())
    assert status.st_size == 3 * 2**20 + 5
    assert getattr(status, "st_blocks", 2**13) * 512 >= 3 * 2**20


def test_a_folder_in_memory_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_transport, "_is_in_memory", lambda folder: True)
    with pytest.warns(SurgeryWarning, match="is in memory itself: give one on a disk") as caught:
        gradients(Offloader(DiskTransport(tmp_path), minimum_bytes=0))
    assert len(caught) == 1


def test_which_folders_are_in_memory(tmp_path: Path) -> None:
    inner = tmp_path / "mounted" / "inner"
    inner.mkdir(parents=True)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw\nnone {tmp_path}/mounted tmpfs rw\nbroken\n")
    assert disk_transport._is_in_memory(str(inner), mounts)
    assert not disk_transport._is_in_memory(str(tmp_path), mounts)
    mounts.write_text(mounts.read_text() + f"disk {inner} xfs rw\n")
    assert not disk_transport._is_in_memory(str(inner), mounts)
    assert not disk_transport._is_in_memory(str(inner), tmp_path / "none")


def test_what_is_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert writable_folder(".") == str(tmp_path)
    for name in ("file", "none"):
        with pytest.raises(SurgeryError, match=f"offload is '{name}', and there is no such folder"):
            writable_folder(name)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SurgeryError, match="no file can be written there"):
        writable_folder(tmp_path)


def test_the_folder_for_large_files_is_that_of_the_user_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    if os.path.isdir("/var/tmp"):
        assert large_temporary_folder() == "/var/tmp"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert large_temporary_folder() == str(tmp_path)


def test_every_floating_dtype_comes_back_to_the_bit(tmp_path: Path) -> None:
    transport = DiskTransport(tmp_path)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        source: Tensor = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1).to(dtype)
        host_copy = transport.put(source)
        assert host_copy is not None
        arrived = transport.get(transport.start(host_copy))
        assert (arrived.dtype, arrived.stride()) == (dtype, source.stride())
        assert torch.equal(arrived.double(), source.double())
