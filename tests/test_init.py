"""The front of the package: one list of names, each of which resolves or says in one sentence what it needs."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ckpt_surgery
from ckpt_surgery.errors import CkptSurgeryError, MissingPackageError
from ckpt_surgery.optional import missing_package

ROOT = Path(__file__).parent.parent
STUB = ast.parse((ROOT / "ckpt_surgery/__init__.pyi").read_text(encoding="utf-8"))
HOMES = {
    alias.asname: node.module
    for node in STUB.body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
    if alias.name == alias.asname
}
"""The names that type checkers see, and the module of each."""

NEED_TRANSFORMERS = ["CheckpointGuard", "tiny_config", "tiny_inputs", "tiny_model"]
NEED_TORCH = [
    "assert_checkpointing",
    "explain",
    "guard",
    "long_context",
    "plan",
    "verify",
    "wrap_blocks",
    "wrap_fastest",
    *NEED_TRANSFORMERS,
]
WITHOUT = """
import sys
sys.modules[{package!r}] = None  # as if it were not installed
"""
REFUSED = """
try:
    from ckpt_surgery import {name}
except ImportError as error:
    print(type(error).__name__, error.name, error)
"""
STAR = """
import pydoc
from ckpt_surgery import *
names = [name for name in globals() if not name.startswith("__") and name not in ("sys", "pydoc", "ckpt_surgery")]
import ckpt_surgery
assert "check" in pydoc.render_doc(ckpt_surgery)
print(*names)
"""


def python(script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    assert list(HOMES) == list(vars(ckpt_surgery)["_HOMES"])
    assert set(ckpt_surgery.__all__) <= set(HOMES)
    imported = [alias for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert len(imported) == len(HOMES), "each line of the stub must read `from MODULE import NAME as NAME`"


@pytest.mark.both
@pytest.mark.parametrize("name", HOMES)
def test_each_name_is_that_of_its_module(name: str) -> None:
    assert getattr(ckpt_surgery, name) is getattr(import_module(HOMES[name]), name)


def test_dir_lists_every_name_and_nothing_else() -> None:
    public = {name for name in dir(ckpt_surgery) if not name.startswith("__")}
    assert public == {name for name in ckpt_surgery.__all__ if not name.startswith("__")}


@pytest.mark.parametrize(
    ("package", "absent"),
    [
        (
            "torch",
            {*NEED_TORCH, "Explanation", "FastestWrap", "Guard", "GuardReport", "LongContext", "Plan", "Surgery"},
        ),
        pytest.param("transformers", {*NEED_TRANSFORMERS}, marks=pytest.mark.both),
    ],
)
def test_without_a_package_help_and_a_star_import_leave_out_what_needs_it(package: str, absent: set[str]) -> None:
    done = python(WITHOUT.format(package=package) + STAR)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == {name for name in HOMES if not name.startswith("__")} - absent


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'ckpt_surgery' has no attribute 'nothing'$"):
        getattr(ckpt_surgery, "nothing")  # noqa: B009 - type checkers know that it is not there


@pytest.mark.parametrize(
    ("name", "package"),
    [
        *((name, "torch") for name in NEED_TORCH),
        *(pytest.param(name, "transformers", marks=pytest.mark.both) for name in NEED_TRANSFORMERS),
    ],
)
def test_without_a_package_one_sentence_says_what_to_install(name: str, package: str) -> None:
    done = python(WITHOUT.format(package=package) + REFUSED.format(name=name))
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"MissingPackageError {package} {name} needs {package}, which is not installed: "
        f"run `python -m pip install {package}`\n",
        "",
    )


def test_the_error_is_one_of_ours_and_an_import_error() -> None:
    error = missing_package("wrap_blocks", "torch")
    assert isinstance(error, CkptSurgeryError)
    assert isinstance(error, ImportError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (MissingPackageError, str(error))
