"""Find the Python files under the given paths, and those that scripts among them import, and read them.

Nothing here imports or runs a file. Whatever cannot be read becomes one `Problem`.
"""

from __future__ import annotations

import ast
import errno
import glob
import io
import os
import stat
import tokenize
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from ckpt_surgery.errors import OptionError, TransformersNotFound
from ckpt_surgery.static.newer import as_older
from ckpt_surgery.static.notebooks import SUFFIX, python_of
from ckpt_surgery.static.results import Problem
from ckpt_surgery.text import one_line

MAX_BYTES = 5 * 1024 * 1024
"""A larger file (5 MiB) is reported and not read: no hand-written module comes near this size."""
MAX_FOLLOWED = 500
"""At most this many files are followed from a script: one that reaches more is a package, named as a folder."""
SKIPPED_PREFIXES = (
    *("configuration_", "tokenization_", "processing_", "image_processing_", "video_processing_"),
    *("feature_extraction_", "modeling_tf_", "modeling_flax_", "convert_", "test_", "conftest"),
)
"""Files that hold no torch model. A folder walk skips them; named explicitly, they are read."""
SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "node_modules"})
_Place: TypeAlias = tuple[str, str, tuple[str, ...]]
"""A path to look at, its real path if that is known, and the real folders on the way to it."""


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
    """Return the `models` folder of the installed transformers, which is found without an import.

    Raises:
        TransformersNotFound: transformers is not installed, or what is installed has no such folder.
    """
    package = _installed_package()
    if package and (package / "models").is_dir():
        return package / "models"
    why = f"{package} has no models folder" if package else "transformers is not installed here"
    raise TransformersNotFound(f"{why}: name the files or folders to check")


def installed_layers() -> str:
    """Return the installed file that defines GradientCheckpointingLayer; empty if there is none."""
    package = _installed_package()
    file = package / "modeling_layers.py" if package else None
    return os.fspath(file) if file and file.is_file() else ""


def _installed_package() -> Path | None:
    """Return the folder of the installed transformers, which is not imported."""
    try:
        spec = find_spec("transformers")
    except ValueError:  # a stand-in in sys.modules without a spec
        return None
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def folders_above(path: str, most: int) -> Iterator[Path]:
    """Yield the folders that a file is in, from its own up to its repository, at most `most` of them."""
    for folder in islice(Path(path).absolute().parents, most):
        yield folder
        if (folder / ".git").exists():
            return


def matches(path: str | Path, patterns: Collection[str]) -> bool:
    """Tell whether a path, or a folder above it, matches one of the glob patterns.

    A pattern without a slash is the name of a file or folder anywhere on the path (`legacy`, `*_old.py`).
    One with a slash is a path, relative to the working folder unless it is absolute. `*` also matches slashes.
    """
    if not patterns:
        return False
    absolute = Path(os.path.abspath(path))
    for pattern in (pattern.rstrip("/") for pattern in patterns):
        names = absolute.parts
        if "/" in pattern:
            pattern = os.path.normpath(os.path.join(glob.escape(os.getcwd()), pattern))
            names = tuple(map(str, (absolute, *absolute.parents)))
        if any(fnmatchcase(name, pattern) for name in names):
            return True
    return False


def checked_path(path: str | Path) -> str:
    """Return a named path as text. Raises OptionError for an empty one, which would mean the working folder."""
    if text := os.fspath(path):
        return text
    raise OptionError("a path is empty, as from an unset variable: name a file or folder, or . for the working folder")


def discover(
    paths: str | Path | Sequence[str | Path],
    *,
    exclude: Collection[str] = (),
    environments: list[str] | None = None,
    notebooks: bool = False,
) -> tuple[list[Path], list[Problem]]:
    """Return the Python files under `paths`, each once and always in the same order, and the problems met.

    A named file is taken whatever it is called, as long as it ends in `.py`, or in `.ipynb` if `notebooks` are
    read. A folder is walked, without hidden folders, virtual environments, `SKIPPED_FOLDERS` and files that start with
    `SKIPPED_PREFIXES`; a transformers checkout or package folder stands for its `models` folder. A walk skips a
    link that leads back to a folder above it or to itself; a named link of that kind is a problem.

    Args:
        paths: files and folders.
        exclude: patterns as `matches` reads them; they never drop a path that is named itself.
        environments: where to add the virtual environments that a walk leaves out.
        notebooks: whether to take named notebooks, too.

    Raises:
        OptionError: an empty path.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    waiting: list[_Place] = []
    links: list[_Place] = []
    files: list[Path] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    left_out = [] if environments is None else environments
    waiting.extend((_model_folder(checked_path(path)), "", ()) for path in reversed([*named]))
    while waiting or links:  # links last: a file found under its own name, too, is reported under that
        path, real, above = waiting.pop() if waiting else links.pop(0)
        try:
            mode = os.stat(path).st_mode
            real = real or os.path.realpath(path)
            if real in seen or any(os.path.join(folder, "").startswith(os.path.join(real, "")) for folder in above):
                continue
            seen.add(real)
            if stat.S_ISDIR(mode):
                if above and _is_environment(path):
                    left_out.append(path)
                    continue
                below, here = _below(path, exclude), (*above, real)
                links += [(entry.path, "", here) for entry in below if entry.is_symlink()]
                waiting += [(e.path, os.path.join(real, e.name), here) for e in reversed(below) if not e.is_symlink()]
            elif stat.S_ISREG(mode) and path.endswith((".py", SUFFIX) if notebooks else ".py"):
                files.append(Path(path))
            elif stat.S_ISREG(mode) and path.endswith(SUFFIX):
                problems.append(Problem(path, "is a notebook: `check` reads it, and its cells are repaired by hand"))
            elif stat.S_ISREG(mode):
                problems.append(Problem(path, "is not a Python file: name a .py file or a folder"))
            elif above:
                problems.append(Problem(path, "is not a regular file: not read"))
            else:
                problems.append(Problem(path, "is neither a file nor a folder: name a .py file or a folder"))
        except OSError as error:
            if not (above and error.errno == errno.ELOOP):
                problems.append(Problem.unreadable(path, error))
        except ValueError:
            problems.append(Problem(path, "is not a path: it contains a NUL character"))
    return files, problems


def _is_environment(folder: str) -> bool:
    """Tell whether a folder is a virtual environment; a leftover pyvenv.cfg alone does not make it one."""
    inside = ("bin/", "Scripts/", "[Ll]ib*/site-packages/", "[Ll]ib*/*/site-packages/")
    return os.path.isfile(os.path.join(folder, "pyvenv.cfg")) and any(
        glob.glob(os.path.join(glob.escape(folder), pattern)) for pattern in inside
    )


def _below(folder: str, exclude: Collection[str]) -> list[os.DirEntry[str]]:
    """Return what a walk visits in a folder: first its sources, then its folders, and links to either."""
    skipped = ("__init__.py", *SKIPPED_PREFIXES)
    entries = sorted(os.scandir(folder), key=lambda entry: (entry.is_dir(follow_symlinks=False), entry.name))
    return [
        entry
        for entry in entries
        if not entry.name.startswith(".")
        and entry.name not in SKIPPED_FOLDERS
        and (not entry.name.startswith(skipped) if entry.name.endswith(".py") else os.path.isdir(entry.path))
        and not matches(entry.path, exclude)
    ]


def imported_files(scripts: Sequence[Path], given: Collection[Path], exclude: Collection[str] = ()) -> list[Path]:
    """Return the files in the scripts' own folders that they import, directly or not, and that are new."""
    seen = {os.path.realpath(path) for path in given} if scripts else set()
    files: list[Path] = []
    for script in scripts:
        folder, real = script.parent, os.path.realpath(script.parent) + os.sep
        followed = [script]
        for path in followed:  # grows while it is read
            for imported in _imports(path, folder) if len(followed) <= MAX_FOLLOWED else ():
                place = os.path.realpath(imported)
                if place not in seen and place.startswith(real) and not matches(imported, exclude):
                    seen.add(place)
                    followed.append(imported)
        files += followed[1:]
    return files


def _syntax(text: str) -> ast.Module:
    """Parse a text; the tree is empty if it does not parse, which is reported when the file is checked."""
    try:
        return ast.parse(text)
    except SyntaxError:
        older = as_older(text)
        return _syntax(older if older and older != text else "")
    except (ValueError, RecursionError, MemoryError):
        return _syntax("")


def _imports(path: Path, folder: Path) -> Iterator[Path]:
    source = source_at(os.fspath(path))
    for node in ast.walk(_syntax(source.text if source else "")):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(folder, alias.name)
        elif isinstance(node, ast.ImportFrom) and (not node.level or path.parent != folder):
            start = path.parents[min(node.level, len(path.parents)) - 1] if node.level else folder
            for alias in node.names:
                yield from _module_files(start, f"{node.module or ''}.{alias.name}")


def _module_files(folder: Path, name: str) -> Iterator[Path]:
    """Yield the file of a module, and those that run before it: the packages around it."""
    for part in filter(None, name.split(".")):
        folder = folder / part
        file = folder.with_name(f"{part}.py")
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        elif file.is_file():
            yield file
            return
        elif not folder.is_dir():
            return


def read_source(path: str | Path) -> SourceFile | Problem:
    """Read and decode one file as Python does (PEP 263), or say in one line why not; of a notebook, the code."""
    name = os.fspath(path)
    try:
        with open(name, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                return Problem(name, f"is larger than {MAX_BYTES // 2**20} MiB: not read; exclude it or split it")
            data = file.readall()
    except OSError as error:
        return Problem.unreadable(name, error)
    if b"\0" in data:
        return Problem(name, "is binary (it contains a NUL byte): not read; exclude it or name another file")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        if not encoding.startswith("utf-8"):
            text.encode()  # some codecs decode to lone surrogates, which no parser takes
    except (SyntaxError, LookupError, ValueError) as error:
        why = one_line(error) or type(error).__name__
        return Problem(name, f"cannot be decoded: {why}; declare its encoding or save it as UTF-8")
    if name.endswith(SUFFIX):
        try:
            text = python_of(text)
        except ValueError as error:
            return Problem(name, f"{error}: not checked")
    return SourceFile(
        path=name,
        text=text,
        encoding="utf-8" if encoding == "utf-8-sig" else encoding,
        bom=encoding == "utf-8-sig",
        digest=blake2b(data, digest_size=16).hexdigest(),
    )


def read_sources(paths: Sequence[Path]) -> tuple[list[SourceFile], list[Problem]]:
    """Return the texts of the files that can be read, and a problem for each other file."""
    results = [read_source(path) for path in paths]
    sources = [result for result in results if isinstance(result, SourceFile)]
    return sources, [result for result in results if isinstance(result, Problem)]


def source_at(path: str) -> SourceFile | None:
    """Return the file at a path; None if there is none, or it cannot be read."""
    source = read_source(path) if os.path.isfile(path) else None
    return source if isinstance(source, SourceFile) else None


def text_at(path: str) -> str | None:
    """Return the text of the file at a path; None if there is none, or it cannot be read."""
    source = source_at(path)
    return source.text if source else None


def _model_folder(path: str) -> str:
    """Return what to walk for a path: the `models` folder of a transformers checkout, else the path itself."""
    checkout, package = os.path.join(path, "src", "transformers", "models"), os.path.join(path, "models")
    if os.path.isdir(checkout):
        return checkout
    return package if os.path.isfile(os.path.join(path, "modeling_layers.py")) and os.path.isdir(package) else path
