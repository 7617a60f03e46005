"""Files of our trees that are changed for a while and put back, however that while ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ckpt_surgery.upstream.layout import COMMON_TESTS, TESTS

COMMON = COMMON_TESTS.as_posix()


def model_test_files(tree: Path, family: str) -> tuple[str, ...]:
    """The family's tests of models in torch, as paths from the top of the tree."""
    paths = sorted((tree / TESTS / family).glob("test_modeling_*.py"))
    other = ("test_modeling_tf_", "test_modeling_flax_")
    return tuple(path.relative_to(tree).as_posix() for path in paths if not path.name.startswith(other))


@contextmanager
def tests_of_series(base: Path, series: Path, files: Iterable[str]) -> Iterator[None]:
    """The base with the series' text of these test files and of the generic tests."""
    both = [path for path in (COMMON, *files) if (base / path).is_file() and (series / path).is_file()]
    base_texts, series_texts = ({path: exact_text(tree, path) for path in both} for tree in (base, series))
    changed = [path for path in both if base_texts[path] != series_texts[path]]
    with restored(base, {path: base_texts[path] for path in changed}):
        write_texts(base, {path: series_texts[path] for path in changed})
        yield


@contextmanager
def restored(tree: Path, originals: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """Puts files back to this text at the end, unless the function that it gives was called to keep them."""
    kept: list[bool] = []
    try:
        yield lambda: kept.append(True)
    finally:
        if not kept:
            write_texts(tree, originals)


def exact_text(tree: Path, path: str | Path) -> str:
    """The text of a file with its own line ends."""
    return (tree / path).read_bytes().decode()


def write_texts(tree: Path, texts: Mapping[str, str]) -> None:
    """Write files, by their paths from the top of the tree, with the line ends of the texts."""
    for path, text in texts.items():
        (tree / path).write_bytes(text.encode())
