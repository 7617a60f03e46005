"""A small checkout like transformers: three families with findings, and our own checkers from `toy_tools`."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.upstream import toy_tools

RUFF = "0.14.10"
VERSION = "5.5.0.dev0"
FAMILIES = ("ash", "birch", "cedar")
"""ash: a plain block. birch: a block tied to it by `# Copied from`. cedar: generated from a modular file."""

_FILES = {
    "src/transformers/__init__.py": f'__version__ = "{VERSION}"\n',
    "setup.py": '_deps = [\n    "regex>=2025",\n    "ruff==@RUFF@",\n    "torch>=2.4",\n]\n',
    "pyproject.toml": "[tool.ruff]\nline-length = 119\n",
    ".gitignore": "__pycache__/\n.pytest_cache/\n.venv/\n",
    ".github/PULL_REQUEST_TEMPLATE.md": """\
# What is this about?

<!-- Tell what changes, and why. -->

Fixes # (issue)

## Before you send it

- [ ] The issue was discussed.
- [ ] There are new tests.

## Who looks at it?

<!-- Name whoever wrote the model. -->
""",
    "src/transformers/modeling_layers.py": """\
from torch import nn


class GradientCheckpointingLayer(nn.Module):
    gradient_checkpointing = False

    def __call__(self, *args, **kwargs):
        for name in ("use_cache", "past_key_values", "layer_past"):
            if self.gradient_checkpointing and name in kwargs:
                kwargs[name] = None
        return super().__call__(*args, **kwargs)
""",
    "src/transformers/modeling_utils.py": """\
from torch import nn


class PreTrainedModel(nn.Module):
    supports_gradient_checkpointing = False

    def __init__(self, config):
        super().__init__()
        self.config = config
""",
    "src/transformers/models/__init__.py": "",
    "tests/__init__.py": "",
    "tests/models/__init__.py": "",
    "tests/test_modeling_common.py": """\
from transformers.modeling_layers import GradientCheckpointingLayer


class ModelTesterMixin:
    all_model_classes = ()

    def test_training_gradient_checkpointing(self):
        for model_class in self.all_model_classes:
            model = model_class(self.config)
            self.assertTrue(any(isinstance(module, GradientCheckpointingLayer) for module in model.modules()))

    def test_forward(self):
        for model_class in self.all_model_classes:
            self.assertTrue(callable(model_class(self.config).forward))
""",
}

_MODELING = """\
from torch import nn

from ...modeling_utils import PreTrainedModel


class AshAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.projection = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states):
        return self.projection(hidden_states)


class AshLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = AshAttention(config)

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states + self.self_attn(hidden_states)


class AshModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([AshLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
"""
_MODULAR = """\
from ...modeling_utils import PreTrainedModel
from ..ash.modeling_ash import AshAttention, AshLayer, AshModel


class CedarAttention(AshAttention):
    pass


class CedarLayer(AshLayer):
    pass


class CedarModel(AshModel):
    pass
"""
_CONFIGURATION = """\
class AshConfig:
    hidden_size = 8
    num_hidden_layers = 2
"""
_TEST = """\
import unittest

from transformers.models.ash.configuration_ash import AshConfig
from transformers.models.ash.modeling_ash import AshModel

from ...test_modeling_common import ModelTesterMixin


class AshModelTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (AshModel,)
    config = AshConfig()
"""
_SKIPPED = """\

    @unittest.skip("checkpointing does not work here")
    def test_training_gradient_checkpointing(self):
        pass
"""
_SCRIPTS = ("copies", "modular_conversion", "docstrings", "repo", "inits")
_TORCH = """\
from torch import nn

__version__ = "2.0.0"
"""
_NN = """\
class Module:
    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def modules(self):
        yield self
        for part in vars(self).values():
            if isinstance(part, Module):
                yield from part.modules()


class Linear(Module):
    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs


class ModuleList(Module):
    def __init__(self, modules):
        self.parts = list(modules)

    def __iter__(self):
        return iter(self.parts)

    def modules(self):
        yield self
        for part in self.parts:
            yield from part.modules()
"""
_RUFF = """\
#!@PYTHON@ -S
# Stands in for ruff: its only rule is that no line ends with a blank.
import sys

if sys.argv[1] == "--version":
    sys.exit(print("ruff @RUFF@"))
from pathlib import Path
options = [word for word in sys.argv[2:] if word.startswith("-")]
code = 0
for place in map(Path, (word for word in sys.argv[2:] if word and not word.startswith("-"))):
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        text = path.read_text()
        clean = "".join(line.rstrip() + "\\n" for line in text.splitlines())
        if clean != text and sys.argv[1] == "format":
            print("Would reformat" if "--check" in options else "Reformatted", path)
            code |= "--check" in options
            if "--check" not in options:
                path.write_text(clean)
sys.exit(code)
"""


def make(
    folder: Path,
    *,
    generation: Literal["checkers", "scripts", "none"] = "checkers",
    failing: Sequence[str] = (),
    failing_before: Sequence[str] = (),
    ruff: str | None = RUFF,
    cache: bool = False,
    torch: bool = True,
    python: bool = True,
    site: bool = True,
) -> Path:
    """Commit a toy checkout in `folder` on branch main; it is built once and copied. Return the folder.

    `failing` names checkers (copies, modular_conversion, docstrings, repo, inits) that fail once a model uses
    GradientCheckpointingLayer, `failing_before` those that always do. setup.py pins ruff RUFF; `ruff` is the version
    of the one in `.venv/bin`, None leaves it out. With `cache`, the runner writes a cache unless given `--no-cache`.
    `torch` adds a minimal torch beside the interpreter; without `python` there is no `.venv`. Without `site` the
    interpreter has none of our installed packages, and starts faster.
    """
    settings = f"FAILING = {tuple(failing)}\nFAILING_BEFORE = {tuple(failing_before)}"
    built = _built(generation, settings, cache=cache)
    shutil.copytree(built, folder, dirs_exist_ok=True)
    if python:
        make_interpreter(folder / ".venv", ruff=ruff, torch=torch, site=site)
    return folder


@functools.cache
def _built(generation: str, settings: str, *, cache: bool) -> Path:
    """Commit the checkout without an interpreter, in a folder removed with this process."""
    scratch = tempfile.mkdtemp(prefix="ckpt_surgery-toy-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    folder = Path(scratch) / "transformers"
    for name, text in (_FILES | _families() | _utils(generation, settings, cache=cache)).items():
        write(folder / name, text.replace("@RUFF@", RUFF))
    modular = folder / "src/transformers/models/cedar/modular_cedar.py"
    write(modular.with_name("modeling_cedar.py"), toy_tools.generate(modular))
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "A Person")
    git(folder, "config", "user.email", "person@example.com")
    commit(folder, "The toy")
    return folder


def make_interpreter(folder: Path, *, ruff: str | None = RUFF, torch: bool = True, site: bool = True) -> Path:
    """Make `bin/python` as in a virtual environment: this Python, with minimal ruff and torch."""
    library = folder / "lib"
    if torch:
        write(library / "torch/__init__.py", _TORCH)
        write(library / "torch/nn.py", _NN)
    library.mkdir(parents=True, exist_ok=True)
    program = sys.executable if site else f"{sys.executable} -S"
    python = write(folder / "bin/python", _sh(f'PYTHONPATH="$PYTHONPATH:{library}" exec {program} "$@"'))
    python.chmod(0o755)
    if ruff is not None:
        text = _RUFF.replace("@RUFF@", ruff).replace("@PYTHON@", sys.executable)
        write(folder / "bin/ruff", text).chmod(0o755)
    return python


def git(folder: Path, *arguments: str) -> str:
    """Run a git command without the user's settings; return its output."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *arguments], cwd=folder, env=own, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, subject: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", subject)
    return git(folder, "rev-parse", "HEAD").strip()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _families() -> dict[str, str]:
    files = {}
    for family in FAMILIES:
        name = family.title()
        models, tests = f"src/transformers/models/{family}", f"tests/models/{family}"
        files[f"{models}/__init__.py"] = files[f"{tests}/__init__.py"] = ""
        files[f"{models}/configuration_{family}.py"] = _CONFIGURATION.replace("Ash", name)
        test = _TEST.replace("Ash", name).replace("ash", family)
        files[f"{tests}/test_modeling_{family}.py"] = test + (_SKIPPED if family == "birch" else "")
    files["src/transformers/models/ash/modeling_ash.py"] = _MODELING
    tied = "# Copied from transformers.models.ash.modeling_ash.AshLayer with Ash->Birch\n"
    birch = _MODELING.replace("class AshLayer", f"{tied}class AshLayer").replace("Ash", "Birch")
    birch = birch.replace("modeling_ash.BirchLayer with Birch", "modeling_ash.AshLayer with Ash")
    files["src/transformers/models/birch/modeling_birch.py"] = birch
    files["src/transformers/models/cedar/modular_cedar.py"] = _MODULAR
    return files


def _utils(generation: str, settings: str, *, cache: bool) -> dict[str, str]:
    if generation == "none":
        return {}
    files = {
        "utils/toy_tools.py": Path(toy_tools.__file__).read_text(encoding="utf-8"),
        "utils/toy_settings.py": f"{settings}\n",
    }
    for name in _SCRIPTS:
        call = f'from toy_tools import script\n\nif __name__ == "__main__":\n    script("{name}")\n'
        if name == "modular_conversion":
            call = f"# The models that differ are those since: git merge-base main HEAD\n{call}"
        files[f"utils/check_{name}.py"] = call
    if generation == "checkers":
        option = '"--no-cache"' if cache else ""
        files["utils/checkers.py"] = (
            f'from toy_tools import checkers\n\nif __name__ == "__main__":\n    checkers({option})\n'
        )
    return files


def _sh(line: str) -> str:
    return f"#!/bin/sh\n{line}\n"
