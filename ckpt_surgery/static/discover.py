"""Find the Python files under the given paths, and read them.

Nothing here parses, imports or runs a file. Whatever cannot be read becomes one `Problem`.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import stat
import tokenize
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from ckpt_surgery.errors import OptionError, TransformersNotFound
from ckpt_surgery.static.results import Problem
from ckpt_surgery.text import one_line

MAX_BYTES = 5 * 1024 * 1024
"""A larger file (5 MiB) is reported and not read: no hand-written module comes near this size."""

SKIPPED_PREFIXES = (
    "configuration_",
    "tokenization_",
    "processing_",
    "image_processing_",
    "video_processing_",
    "feature_extraction_",
    "convert_",
    "modeling_tf_",
    "modeling_flax_",
    "test_",
    "conftest",
)
"""Files that hold no torch model. A folder walk skips them; named explicitly, they are read."""

SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "node_modules"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file, decoded. `text` has the file's own line endings and no byte order mark.

    `digest` is the hexadecimal blake2b (16 bytes) of the bytes on disk.
    """

    path: str
    text: str
    encoding: str
    bom: bool
    digest: str


def installed_models() -> Path:
    """The `models` folder of the installed transformers, found without importing it.

    Raises:
        TransformersNotFound: transformers is not installed, or what is installed has no such folder.
    """
    package = _installed_package()
    if package is None:
        raise TransformersNotFound("transformers is not installed here: name the files or folders to check")
    if not (package / "models").is_dir():
        raise TransformersNotFound(f"{package} has no models folder: name the files or folders to check")
    return package / "models"


def installed_layers() -> str:
    """The file of the installed transformers that defines GradientCheckpointingLayer; empty where there is none."""
    package = _installed_package()
    file = package / "modeling_layers.py" if package else None
    return os.fspath(file) if file and file.is_file() else ""


def _installed_package() -> Path | None:
    """The folder of the installed transformers, which is not imported."""
    try:
        spec = find_spec("transformers")
    except ValueError:  # a stand-in in sys.modules without a spec
        return None
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def folders_above(path: str, most: int) -> Iterator[Path]:
    """The folders that a file is in, from its own up to its repository, `most` of them at the most."""
    for folder in islice(Path(path).absolute().parents, most):
        yield folder
        if (folder / ".git").exists():
            return


def matches(path: str | Path, patterns: Collection[str]) -> bool:
    """Whether a path, or a folder above it, matches one of the glob patterns.

    A pattern without a slash is the name of a file or folder anywhere on the path (`legacy`, `*_old.py`).
    One with a slash is a path, relative to the working folder unless it is absolute. `*` also matches slashes.
    """
    if not patterns:
        return False
    absolute = Path(os.path.abspath(path))
    for pattern in patterns:
        pattern = pattern.rstrip("/")
        if "/" not in pattern:
            if any(fnmatchcase(part, pattern) for part in absolute.parts):
                return True
            continue
        whole = os.path.normpath(os.path.join(glob.escape(os.getcwd()), pattern))
        if fnmatchcase(absolute.as_posix(), whole) or fnmatchcase(absolute.as_posix(), f"{whole}/*"):
            return True
    return False


def checked_path(path: str | Path) -> str:
    """A path that was named, as text. Raises OptionError for an empty one, which would mean the working folder."""
    text = os.fspath(path)
    if not text:
        raise OptionError(
            "a path is empty, as from an unset variable: name a file or folder, or . for the working folder"
        )
    return text


def discover(
    paths: str | Path | Sequence[str | Path], *, exclude: Collection[str] = ()
) -> tuple[list[Path], list[Problem]]:
    """The Python files under `paths`, or under a single path, each once and always in the same order.

    A named file is taken whatever it is called, as long as it ends in `.py`. A folder is walked, without hidden
    folders, virtual environments, `SKIPPED_FOLDERS` and files that start with `SKIPPED_PREFIXES`; a transformers
    checkout or package folder stands for its `models` folder. `exclude` are patterns as `matches` reads them; they
    never drop a path that is named itself. A link that leads back to a folder above it, or to itself, is passed over
    in a walk; one that is named and leads to itself is a problem.

    Raises:
        OptionError: an empty path.
    """
    walk = _Walk(exclude)
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        walk.start(checked_path(path))
    walk.follow_links()
    return walk.files, walk.problems


@dataclass
class _Walk:
    """The state of one `discover`. Real paths decide what was seen; paths are returned as they were met."""

    exclude: Collection[str]
    files: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    links: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def start(self, path: str) -> None:
        """Take a path that the user named."""
        kind = self._kind(path)
        if kind is None:
            return
        if stat.S_ISDIR(kind):
            root = _model_folder(path)
            self._folder(root, os.path.realpath(root), ())
        elif not stat.S_ISREG(kind):
            self._problem(path, "is neither a file nor a folder: name a .py file or a folder")
        elif not path.endswith(".py"):
            self._problem(path, "is not a Python file: name a .py file or a folder")
        else:
            self._file(path, os.path.realpath(path))

    def follow_links(self) -> None:
        """Follow symbolic links, last: a file that is also met under its own name is reported under that name."""
        while self.links:
            path, chain = self.links.pop(0)
            kind = self._kind(path)
            if kind is None:
                continue
            real = os.path.realpath(path)
            if not stat.S_ISDIR(kind):
                self._file(path, real)
            elif not any(above == real or above.startswith(real.rstrip(os.sep) + os.sep) for above in chain):
                self._folder(path, real, chain)

    def _kind(self, path: str) -> int | None:
        try:
            return os.stat(path).st_mode
        except OSError as error:
            self._problem(path, _reason(error, os.path.islink(path)))
        except ValueError:
            self._problem(path, "is no path: it contains a NUL character")
        return None

    def _folder(self, root: str, real: str, chain: tuple[str, ...]) -> None:
        folders = [(root, real)]
        while folders:
            path, real = folders.pop()
            if real in self.seen:
                continue
            self.seen.add(real)
            try:
                with os.scandir(path) as entries:
                    ordered = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                self._problem(path, _reason(error, False))
                continue
            if path != root and any(entry.name == "pyvenv.cfg" for entry in ordered):
                continue
            below = [self._entry(entry, path, real, chain) for entry in ordered]
            folders.extend(pair for pair in reversed(below) if pair is not None)

    def _entry(
        self, entry: os.DirEntry[str], folder: str, real: str, chain: tuple[str, ...]
    ) -> tuple[str, str] | None:
        """Take one entry of a folder; return it if it is a folder to walk in turn."""
        name, path = entry.name, os.path.join(folder, entry.name)
        if name.startswith(".") or name in SKIPPED_FOLDERS or (self.exclude and matches(path, self.exclude)):
            return None
        if entry.is_symlink():
            self._link(path, (*chain, real), name)
        elif entry.is_dir(follow_symlinks=False):
            return path, os.path.join(real, name)
        elif _is_source(name):
            if entry.is_file(follow_symlinks=False):
                self._file(path, os.path.join(real, name))
            else:
                self._problem(path, "is not a regular file: not read")
        return None

    def _link(self, path: str, chain: tuple[str, ...], name: str) -> None:
        # A link to nothing matters only where it would have been a source file; one to itself nowhere.
        if not _is_loop(path) and (_is_source(name) or (not name.endswith(".py") and os.path.isdir(path))):
            self.links.append((path, chain))

    def _file(self, path: str, real: str) -> None:
        if real not in self.seen:
            self.seen.add(real)
            self.files.append(Path(path))

    def _problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))


def read_source(path: str | Path) -> SourceFile | Problem:
    """Read and decode one file as Python does (PEP 263), or say in one line why that fails."""
    name = os.fspath(path)
    try:
        with open(name, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                return Problem(name, f"is larger than {MAX_BYTES // 2**20} MiB: not read; exclude it or split it")
            data = file.readall()
    except OSError as error:
        return Problem(name, _reason(error, os.path.islink(name)))
    if b"\0" in data:
        return Problem(name, "is binary (it contains a NUL byte): not read; exclude it or name another file")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        if not encoding.startswith("utf-8"):
            text.encode("utf-8")  # some codecs decode to lone surrogates, which no parser takes
    except (SyntaxError, LookupError, ValueError) as error:
        return Problem(name, f"cannot be decoded: {_one_line(error)}; declare its encoding or save it as UTF-8")
    return SourceFile(
        path=name,
        text=text,
        encoding="utf-8" if encoding == "utf-8-sig" else encoding,
        bom=encoding == "utf-8-sig",
        digest=blake2b(data, digest_size=16).hexdigest(),
    )


def read_sources(paths: Sequence[Path]) -> tuple[list[SourceFile], list[Problem]]:
    """The texts of the files that can be read, and a problem for each other file."""
    results = [read_source(path) for path in paths]
    sources = [result for result in results if isinstance(result, SourceFile)]
    return sources, [result for result in results if isinstance(result, Problem)]


def _model_folder(path: str) -> str:
    """The folder to walk: the `models` folder of a transformers checkout or package, else the folder itself."""
    checkout = os.path.join(path, "src", "transformers", "models")
    if os.path.isdir(checkout):
        return checkout
    package = os.path.join(path, "models")
    if os.path.isfile(os.path.join(path, "modeling_layers.py")) and os.path.isdir(package):
        return package
    return path


def _is_source(name: str) -> bool:
    return name.endswith(".py") and name != "__init__.py" and not name.startswith(SKIPPED_PREFIXES)


def _is_loop(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _reason(error: OSError, link: bool) -> str:
    """Why a path could not be opened, and what to do about it, on one line."""
    if error.errno == errno.ELOOP:
        return "is a cycle of symbolic links: not followed; remove the link"
    if error.errno == errno.ENOENT:
        return (
            "is a symbolic link to nothing: remove or repair it" if link else "no such file or folder: check the path"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return "may not be read: change its permissions or exclude it"
    return f"cannot be read: {error.strerror or error}"


def _one_line(error: Exception) -> str:
    return one_line(error) or type(error).__name__
