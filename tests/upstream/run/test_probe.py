"""What the checkout's own Python has, or the one sentence on why it cannot run the models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.probe import probe
from tests.upstream.toy_checkout import RUFF, VERSION, make_interpreter, write

PIN = "pebbles>=2.0 is required for a normal functioning of this module, but found pebbles==1.4."


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return with_python(tmp_path / "transformers")


def with_python(tree: Path, *, ruff: str | None = RUFF, torch: bool = True) -> Path:
    """The least that can be imported as transformers, and an interpreter beside it."""
    write(tree / "src/transformers/__init__.py", f"__version__ = {VERSION!r}\n")
    make_interpreter(tree / ".venv", ruff=ruff, torch=torch, site=False)
    return tree


def program(path: Path, text: str = "#!/bin/sh\nexit 0\n") -> Path:
    write(path, text).chmod(0o755)
    return path


def probed(tree: Path, start: str = "") -> dict[str, str]:
    """What is found in a tree whose transformers begins with these lines."""
    path = tree / "src/transformers/__init__.py"
    path.write_text(f"{start}\n{path.read_text()}")
    return probe(PythonInterpreter(tree / ".venv/bin/python"), tree)


def test_the_versions_are_told(tree: Path) -> None:
    version = "{}.{}.{}".format(*sys.version_info[:3])
    assert probed(tree) == {"python": version, "ruff": RUFF, "torch": "2.0.0", "transformers": VERSION}


def test_what_is_printed_on_import_is_no_answer(tree: Path) -> None:
    assert probed(tree, "print('hello', end=' ')")["transformers"] == VERSION


@pytest.mark.parametrize("ruff", [None, ""], ids=["none", "one that says nothing"])
def test_no_version_is_told_of_a_ruff_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ruff: str | None
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "ruff" not in probed(with_python(tmp_path / "transformers", ruff=ruff))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (
            f"raise ImportError({PIN!r} + chr(10) + 'more')",
            "has pebbles==1.4, and the checkout needs pebbles>=2.0: ",
        ),
        ("import pebbles", "has no pebbles, which transformers needs: "),
        ("raise ValueError('odd' + chr(10) + 'and long')", "cannot import transformers (ValueError: odd): "),
        ("raise ValueError", "cannot import transformers (ValueError: ValueError): "),
        ("import os; os.kill(os.getpid(), 11)", "cannot import transformers and torch (killed by SIGSEGV): "),
        ("raise SystemExit('bye')", "cannot import transformers and torch (bye): "),
    ],
    ids=["a pin", "a missing module", "another error", "an error without words", "a crash", "an exit"],
)
def test_a_requirement_that_is_not_met_is_one_sentence(tree: Path, start: str, words: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        probed(tree, start)
    message = str(caught.value)
    assert message.startswith(f"{tree}/.venv/bin/python {words}")
    assert message.endswith(
        "python -m pip install -e '.[torch,testing,quality]', or name another Python with --python"
    )
    assert "\n" not in message


def test_torch_has_to_be_there(tmp_path: Path) -> None:
    tree = with_python(tmp_path / "transformers", torch=False)
    write(tree / ".venv/lib/torch.py", "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    with pytest.raises(UpstreamError, match="python has no torch: install"):
        probed(tree)


def test_a_transformers_from_elsewhere_is_refused(tree: Path) -> None:
    write(tree / ".venv/other/transformers/__init__.py", "__version__ = '1'")
    line = f'PYTHONPATH="{tree}/.venv/other:{tree}/.venv/lib" exec {sys.executable} "$@"'
    program(tree / ".venv/bin/python", f"#!/bin/sh\n{line}\n")
    with pytest.raises(UpstreamError, match=r"imports transformers from <python>/other/transformers and not from"):
        probed(tree)


def test_a_python_that_is_too_old_is_refused_before_anything_is_imported(tree: Path) -> None:
    older = "import sys; sys.version_info = (3, 9, 2); exec(sys.argv[2].replace('sys.argv[1]', 'sys.argv[3]'))"
    program(tree / ".venv/bin/python", f'#!/bin/sh\nexec {sys.executable} -c "{older}" "$@"\n')
    with pytest.raises(UpstreamError, match=r"python is Python 3\.9\.2, and 3\.11 or later is needed: name another"):
        probed(tree, "raise ImportError")
