"""The folder of a model with its own code: its configuration and the classes that it names.

Nothing in it is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.survey.configurations import read_config, remote_classes


class AdoptError(CkptSurgeryError, ValueError):
    """A folder cannot be adopted, or a repair or page cannot be written."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder as on the Hub.

    `classes` are the model classes whose code it holds, each with its reference (`modeling_x.XModel`), and
    `auto_classes` the classes of transformers that load them (`AutoModelForCausalLM`).
    """

    path: Path
    model_type: str
    classes: Mapping[str, str]
    auto_classes: Mapping[str, str]

    @property
    def name(self) -> str:
        """Return the last part of the path, also where that is `.`."""
        return self.path.resolve().name

    def relative(self, path: str) -> str:
        """Return a path of a file in the folder, from the folder on, with forward slashes."""
        return Path(os.path.relpath(path, self.path)).as_posix()


def read_folder(path: Path) -> ModelFolder:
    """Read and check the folder at `path`.

    Raises:
        AdoptError: there is no such folder, or it holds no model with code of its own.
        TargetError: its configuration cannot be read, or names code that is not in the folder.
    """
    if not path.is_dir():
        what = "is a file: name the folder that it is in" if path.exists() else "does not exist: check the path"
        raise AdoptError(f"{path} {what}")
    check_alone = f"`ckpt_surgery check {path}` looks at any code"
    file = path / "config.json"
    if not file.exists():
        raise AdoptError(f"{path} has no config.json: adopt takes a model's folder; {check_alone}")
    if not any(path.glob("*.py")):
        raise AdoptError(f"{path} holds no Python file: there is no code to adopt")
    config = read_config(file)
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, dict) or not auto_map:
        raise AdoptError(
            f"{file} has no `auto_map`, which names a model's own code: add it, or use what needs none: {check_alone}"
        )
    classes = remote_classes(file, config)
    # of several keys with one class the last counts, since AutoModel comes before its heads
    keys = {value: key for key, value in auto_map.items() if isinstance(value, str)}
    auto_classes = {name: keys[reference] for name, reference in classes.items()}
    return ModelFolder(path, str(config.get("model_type") or ""), classes, auto_classes)
