"""Test files of our trees that are changed for a while and put back, however that while ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ckpt_surgery.upstream.layout import TESTS


def model_test_files(tree: Path, family: str) -> tuple[str, ...]:
    """Return the family's tests of models in torch, as paths from the top of the tree."""
    paths = sorted((tree / TESTS / family).glob("test_modeling_*.py"))
    other = ("test_modeling_tf_", "test_modeling_flax_")
    return tuple(path.relative_to(tree).as_posix() for path in paths if not path.name.startswith(other))


@contextmanager
def tests_of_series(base: Path, series: Path, files: Iterable[str]) -> Iterator[None]:
    """Give the base the series' text of these test files, for a while."""
    both = [path for path in files if (base / path).is_file()]
    with restored(base, {path: exact_text(base, path) for path in both}):
        write_texts(base, {path: exact_text(series, path) for path in both})
        yield


@contextmanager
def restored(tree: Path, originals: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """Put files back to this text at the end, unless the function that it gives was called to keep them."""
    kept: list[bool] = []
    try:
        yield lambda: kept.append(True)
    finally:
        if not kept:
            write_texts(tree, originals)


def exact_text(tree: Path, path: str | Path) -> str:
    """Read a file with its own line ends."""
    return (tree / path).read_bytes().decode()


def write_texts(tree: Path, texts: Mapping[str, str]) -> None:
    """Write files, by their paths from the top of the tree, with the line ends of the texts."""
    for path, text in texts.items():
        (tree / path).write_bytes(text.encode())
