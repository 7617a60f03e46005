"""Keep block inputs in files instead of host memory. No process leaves a file behind, however it ends."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.offload.buffer_pool import Buffer, BufferPool
from ckpt_surgery.runtime.offload.copy_thread import CopyJob, CopyThread
from ckpt_surgery.runtime.offload.host_transport import DeviceCopy, HostCopy, HostTransport
from ckpt_surgery.torch_names import FakeTensor

_PREFIX = "ckpt-surgery-"
_PIECE = 2**20  # bytes written at a time to reserve room
_CANNOT_RESERVE = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
"""The errors of a file system that cannot reserve room."""
_IN_MEMORY = {"tmpfs", "ramfs"}
"""File systems in memory."""


class DiskTransport(HostTransport):
    """A transport to memory-mapped files in `folder`, by default the system's folder for large temporary files.

    The kernel writes them to the disk, and reads them again, as memory gets short. One thread makes all copies, both
    ways, in the order of the requests, so that a reused buffer is written only after the copies that read it. `finish`
    and `get` wait for it, and raise SurgeryError if a copy failed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__(MappedFiles(large_temporary_folder() if folder is None else os.fspath(folder)))
        self.thread = CopyThread()
        self._given = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def put(self, source: Tensor) -> HostCopy | None:
        """Start to copy to a file on the thread. None if the disk has no room."""
        if isinstance(source, FakeTensor):
            return super().put(source)
        buffer = self.pool.take(source.nbytes, source.device)
        if buffer is None:
            return None
        file = buffer.laid_out_as(source)
        copy = self._copying(file, source, source.device, "to_host")
        job = self.thread.run("write a block input to a file", copy)
        return FileCopy(file, source.device, buffer, self.pool, job=job)

    def finish(self, host_copy: HostCopy) -> None:
        """Wait until the source is in the file."""
        if isinstance(host_copy, FileCopy):
            host_copy.job.wait()

    def start(self, host_copy: HostCopy) -> DeviceCopy:
        """Start to copy back on the thread. Raises SurgeryError in a forked process."""
        if not isinstance(host_copy, FileCopy):
            return super().start(host_copy)
        host_copy.check_process()
        tensor = torch.empty_like(host_copy.host, device=host_copy.device)
        copy = self._copying(tensor, host_copy.host, host_copy.device, "to_device")
        return ReadCopy(tensor, job=self.thread.run("read a block input from its file", copy), file=host_copy)

    def get(self, device_copy: DeviceCopy) -> Tensor:
        """Return the tensor once it is read."""
        if isinstance(device_copy, ReadCopy):
            device_copy.file.job.wait()
            device_copy.job.wait()
            return device_copy.tensor
        return super().get(device_copy)

    def release(self) -> None:
        """Free idle files, and the others when they come back, and end the thread."""
        super().release()
        self.thread.stop()

    def _copying(self, target: Tensor, source: Tensor, device: torch.device, side: str) -> Callable[[], None]:
        """Return a function that copies after the work queued now, on the side stream `side` if there are streams.

        It may run on any thread, holds both tensors, and returns when the copy is done.
        """
        streams = self._side_streams(device)
        before = None if streams is None else streams.compute().record_event()

        def copy() -> None:
            if streams is None:
                _copy(target, source)
                return
            stream = getattr(streams, side)
            with streams.module.stream(stream):
                stream.wait_event(before)
                target.copy_(source, non_blocking=True)
            stream.record_event().synchronize()

        return copy


@dataclass(slots=True, eq=False)
class FileCopy(HostCopy):
    """A copy in a file; `job` writes it."""

    job: CopyJob = field(kw_only=True)

    def __del__(self) -> None:
        self.job.future.cancel()  # one that has begun ends by itself
        HostCopy.__del__(self)


@dataclass(frozen=True, slots=True, eq=False)
class ReadCopy(DeviceCopy):
    """A copy back from `file`, which is kept as long as this; `job` reads it."""

    job: CopyJob = field(kw_only=True)
    file: FileCopy = field(kw_only=True)

    def __del__(self) -> None:
        self.job.future.cancel()


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


class MappedFiles(BufferPool):
    """Buffers that are memory-mapped files in one folder.

    A file has no name once it is open (on Windows the system deletes it when it is closed), so that a killed process
    leaves nothing behind.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def _make(self, size: int, device: torch.device) -> Buffer | None:
        if _is_in_memory(self.folder):
            words = f"the folder for offload, {self.folder}, is in memory itself: give one on a disk"
            self._warn_once("disk", words)
        while True:
            try:
                return Buffer(torch.frombuffer(self._mapped(size), dtype=torch.uint8))
            except (OSError, ValueError) as error:
                if self._idle:
                    self._idle.clear()
                    continue
                why = getattr(error, "strerror", None) or str(error)
                words = f"{self.folder} takes no more block inputs ({why}): they stay on the device"
                self._warn_once("folder", words)
                return None

    def _mapped(self, size: int) -> mmap.mmap:
        """Map a new file without a name, of `size` bytes on the disk. Raises OSError if the disk has no room."""
        with tempfile.TemporaryFile(dir=self.folder, prefix=_PREFIX) as file:
            _reserve(file, size)
            if sys.version_info >= (3, 13) and os.name == "posix":
                return mmap.mmap(file.fileno(), size, trackfd=False)  # else each keeps a file descriptor
            return mmap.mmap(file.fileno(), size)


def writable_folder(folder: str | os.PathLike[str]) -> str:
    """Return the absolute path of a folder. Raises SurgeryError if it is not a folder, or not writable."""
    path = os.path.abspath(os.fspath(folder))
    if not os.path.isdir(path):
        raise SurgeryError(
            f"offload is {os.fspath(folder)!r}, and there is no such folder: give "
            '"cpu", "disk" or a folder that is there'
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise SurgeryError(f"offload is {os.fspath(folder)!r}, and no file can be written there")
    return path


def large_temporary_folder() -> str:
    """Return the folder for large temporary files: TMPDIR, or else /var/tmp, since /tmp is often in memory."""
    given = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return "/var/tmp" if not given and os.access("/var/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()


def _reserve(file: IO[bytes], size: int) -> None:
    """Allocate a file's space on the disk now: writing to a mapped page without space would kill the process."""
    try:
        os.posix_fallocate(file.fileno(), 0, size)
        return
    except AttributeError:
        pass  # not on macOS and Windows
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise
    for start in range(0, size, _PIECE):
        file.write(bytes(min(_PIECE, size - start)))
    file.flush()


def _is_in_memory(folder: str, mounts: Path = Path("/proc/mounts")) -> bool:
    """Tell whether a folder's file system has no disk. False if that is not known."""
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return False
    real = Path(os.path.realpath(folder))
    mounted = [
        (len(fields[1]), index, fields[2])
        for index, fields in enumerate(lines)
        if len(fields) > 2 and real.is_relative_to(fields[1])
    ]
    return max(mounted, default=(0, 0, ""))[2] in _IN_MEMORY  # the last of several on one folder hides the others
