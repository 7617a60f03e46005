"""Runs of a tree's models in its own Python, and the reasons to refuse them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ckpt_surgery import apply
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import CommandRun
from ckpt_surgery.upstream.evidence.rows import rows_of
from ckpt_surgery.upstream.layout import MODELS
from ckpt_surgery.upstream.run import reproduce
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.reproduce import failed_import, targets_of, verify_tree, versions_of
from tests.upstream.toy_checkout import RUFF, VERSION, make_interpreter, write

HERE = PythonInterpreter(Path(sys.executable))
PATIENCE = 20.0


# --- what cannot be run -----------------------------------------------------------------------------------


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a temporary folder that must be empty again at the end."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


Python = Callable[..., PythonInterpreter]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Make an interpreter with only the modules it is given."""

    def make(**modules: str) -> PythonInterpreter:
        folder = tmp_path / "venv"
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        (place,) = folder.glob("lib/python*/site-packages")
        for name, text in modules.items():
            (place / name).mkdir()
            (place / name / "__init__.py").write_text(text)
        return PythonInterpreter(folder / "bin" / "python")

    return make


def a_tree(tmp_path: Path, text: str = "") -> Path:
    """Write a checkout with one class, and this text as transformers."""
    models = tmp_path / "tree" / MODELS
    (models / "toy").mkdir(parents=True)
    (models.parent / "__init__.py").write_text(text)
    (models / "toy" / "modeling_toy.py").write_text("class ToyModel:\n    pass\n")
    return tmp_path / "tree"


def refusal(python: PythonInterpreter, tree: Path) -> str:
    """Say why the models of a tree are not run."""
    with pytest.raises(UpstreamError) as caught:
        verify_tree(python, tree, ["toy"])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_interpreter_without_torch_is_refused(temp: Path, tmp_path: Path, python: Python) -> None:
    bare = python()
    message = refusal(bare, a_tree(tmp_path))
    assert message.startswith(f"{bare.path} cannot run the checkout's models: what models need cannot be imported: ")
    assert "ModuleNotFoundError: " in message


def test_what_models_need_and_cannot_import_is_reported(temp: Path, tmp_path: Path, python: Python) -> None:
    tree = a_tree(tmp_path, "raise ImportError(f'tokenizers is missing: {__file__}')")
    message = refusal(python(torch=""), tree)
    said = "what models need cannot be imported: ImportError: tokenizers is missing: src/transformers/__init__.py; "
    assert said in message


def test_an_interrupt_leaves_no_process_and_no_file(temp: Path, tmp_path: Path, python: Python) -> None:
    file = tmp_path / "pid"
    start = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); "
    tree = a_tree(tmp_path, f"{start}time.sleep({10 * PATIENCE})")

    def interrupt() -> None:
        limit = time.monotonic() + PATIENCE
        while not (file.exists() and file.read_text()) and time.monotonic() < limit:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        verify_tree(python(torch=""), tree, ["toy"])
    limit = time.monotonic() + PATIENCE / 2
    while _runs(int(file.read_text())) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not _runs(int(file.read_text()))


def _runs(pid: int) -> bool:
    """Tell whether a process is alive and no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


# --- what the interpreter has -----------------------------------------------------------------------------


PIN = "pebbles>=2.0 is required for a normal functioning of this module, but found pebbles==1.4."


def versions(folder: Path, start: str = "", *, ruff: str | None = RUFF) -> dict[str, str]:
    """Read the versions of a tree whose transformers begins with these lines, with an interpreter beside it."""
    write(folder / "src/transformers/__init__.py", f"{start}\n__version__ = {VERSION!r}\n")
    return versions_of(PythonInterpreter(make_interpreter(folder / ".venv", ruff=ruff, site=False)), folder)


def test_the_versions_are_reported_whatever_is_printed_on_import(tmp_path: Path) -> None:
    version = "{}.{}.{}".format(*sys.version_info[:3])
    expected = {"python": version, "ruff": RUFF, "torch": "2.0.0", "transformers": VERSION}
    assert versions(tmp_path, "print('hello=2')") == expected


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (f"raise ImportError({PIN!r})", f"(ImportError: {PIN})"),
        ("import pebbles", "(ModuleNotFoundError: No module named 'pebbles')"),
        ("import os; os.kill(os.getpid(), 11)", "(killed by SIGSEGV)"),
    ],
    ids=["a pin", "a missing module", "a crash"],
)
def test_a_requirement_that_is_not_met_is_one_sentence(tmp_path: Path, start: str, words: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        versions(tmp_path, start)
    python = f"{tmp_path}/.venv/bin/python"
    assert str(caught.value) == (
        f"{python} cannot import transformers and torch {words}: install what it needs, in the checkout, "
        f"with {python} -m pip install -e '.[torch,testing,quality]', or name another Python with --python"
    )


def test_a_transformers_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"imports transformers from <python>/other\.py and not from the checkout"):
        versions(tmp_path, f"__file__ = {str(tmp_path / '.venv/other.py')!r}")


# --- models -----------------------------------------------------------------------------------


def installed(folder: Path) -> Path:
    """Build a tree with the installed transformers."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    (folder / "src").mkdir(parents=True)
    (folder / "src/transformers").symlink_to(Path(spec.origin).parent)
    return folder


def with_own(tree: Path, folder: Path, families: tuple[str, ...]) -> Path:
    """Link a tree to another, with copies of some families."""
    package = (tree / "src" / "transformers").resolve()
    models = folder / MODELS
    models.mkdir(parents=True)
    for entry in package.iterdir():
        if entry.name != "models":
            (models.parent / entry.name).symlink_to(entry)
    for entry in (package / "models").iterdir():
        if entry.name in families:
            shutil.copytree(entry, models / entry.name)
        else:
            (models / entry.name).symlink_to(entry)
    return folder


@pytest.mark.slow
@pytest.mark.torch
def test_clvp_is_repaired_and_what_cannot_be_imported_is_worse(temp: Path, tmp_path: Path) -> None:
    base = installed(tmp_path / "base")
    tree = with_own(base, tmp_path / "series", ("clvp", "xlstm"))
    apply([tree / MODELS / "clvp"], cache=False)
    broken = MODELS / "xlstm" / "modeling_xlstm.py"
    with (tree / broken).open("a") as file:
        file.write("\nraise ImportError(f'cannot import this from {__file__}')\n")

    steps: list[tuple[str, int, int]] = []
    modules = [f"transformers.models.{family}.modeling_{family}" for family in ("clvp", "xlstm")]
    clvp = verify_tree(HERE, base, ["clvp", "xlstm", "auto"], modules=modules[:1], jobs=1)
    both = verify_tree(
        HERE, tree, ["clvp", "xlstm"], modules=modules, jobs=1, progress=lambda *step: steps.append(step)
    )
    assert clvp.imported == CommandRun(f'python -c "import {modules[0]}"', 0)
    assert both.imported is not None
    assert (both.imported.command, both.imported.code) == (f'python -c "import {", ".join(modules)}"', 1)
    assert both.imported.output.endswith(f"ImportError: cannot import this from {broken}")
    assert str(tmp_path) not in both.imported.output
    before, after = clvp.by_family, both.by_family
    assert before["auto"] == ()
    assert steps[-1] == ("5 ok, 2 not built", 7, 7)

    rows = rows_of("clvp", before["clvp"], after["clvp"])
    names = ("Decoder", "Encoder", "ForCausalLM", "Model", "ModelForConditionalGeneration")
    assert [row.model for row in rows[::2]] == [f"Clvp{name}" for name in names]
    assert {row.verdict for row in rows} == {"repaired"}

    rows = rows_of("xlstm", before["xlstm"], after["xlstm"])
    assert [row.model for row in rows[::2]] == ["xLSTMForCausalLM", "xLSTMModel"]
    assert {row.verdict for row in rows} == {"worse"}
    for row in rows:
        assert row.after == ("run",)
        assert f"cannot import this from {broken}" in row.faults_after[0]
        assert str(tmp_path) not in row.faults_after[0]


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"python is Python 3\.9\.2, and 3\.11 or later is needed: name another"):
        versions(tmp_path, "import sys; sys.version_info = (3, 9, 2)")


@pytest.mark.torch
def test_a_router_gives_a_variant_and_what_is_not_a_model_no_target() -> None:
    targets = targets_of(None, classes={"mixtral": ["MixtralForCausalLM", "MixtralMLP"], "none": ["Nothing"]})
    assert [job["variant"] for job in targets["mixtral"]] == ["", "router loss"]
    assert targets["none"] == []


def test_the_first_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"sound_toy": "", "broken_toy": "import nowhere\n", "leaving_toy": "raise SystemExit\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert failed_import(None, modules=["sound_toy", "json"]) == ""
    said = failed_import(None, modules=["sound_toy", "broken_toy", "leaving_toy"])
    assert said.endswith("ModuleNotFoundError: No module named 'nowhere'")
    assert "broken_toy.py" in said
    assert Path(reproduce.__file__).name not in said
    assert failed_import(None, modules=["leaving_toy"]).endswith("SystemExit")
