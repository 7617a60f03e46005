"""Load a model class from the code beside its configuration, and say why code cannot be used.

The folder is imported as a package, from where it is: relative imports reach every file in it, nothing is copied, and
a traceback names the files that the reader has. If the code fails on the installed releases, a sentence says why.
"""

from __future__ import annotations

import linecache
import re
import sys
import zlib
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any

from ckpt_surgery.errors import BuildStage, CannotBuild
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.survey.configurations import read_config
from ckpt_surgery.survey.target import TargetError
from ckpt_surgery.text import error_line

_MISSING_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def load_remote(folder: Path, reference: str) -> tuple[Any, Any]:
    """Return the class that `reference` (`modeling_x.XForCausalLM`) names in `folder`, and its configuration.

    Raises:
        TargetError: the code cannot be imported, has no such class, or no configuration can be made.
    """
    auto_map = read_config(folder / "config.json").get("auto_map") or {}
    config_reference = auto_map.get("AutoConfig")
    try:
        model_class = _imported(folder, reference)
        if isinstance(config_reference, str):
            config = _imported(folder, config_reference).from_pretrained(folder)
        else:
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(folder)
    except TargetError:
        raise
    except Exception as error:  # code of others may raise anything
        raise TargetError(_import_problem(folder, reference, error)) from None
    return model_class, config


def build_problem(folder: Path, failure: CannotBuild) -> str:
    """Say why a build failed, with the line of the folder's code and the release that it was written for."""
    if failure.stage is BuildStage.SIZE:
        return str(failure)
    places = [(file, int(line)) for file, _, line in (place.rpartition(":") for place in failure.origin[1:])]
    own = [(file, line) for file, line in places if _name(folder, file)]
    where = ""
    if own:
        file, line = own[-1]
        where = f" ({_name(folder, file)}, line {line}: {linecache.getline(file, line).strip()})"
    return f"{failure}{where}{_other_release(folder)}"


def _imported(folder: Path, reference: str) -> Any:
    # A package stands for the folder; its own `__init__.py`, if any, is not run
    place = str(folder.resolve())
    name = re.sub(r"\W", "_", folder.resolve().name)
    package = f"remote_code_{name}_{zlib.crc32(place.encode()):08x}"
    if package not in sys.modules:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [place]
        sys.modules[package] = module_from_spec(spec)
    module_name, _, attribute = reference.rpartition(".")
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is written into the folder
    try:
        module = import_module(f"{package}.{module_name}")
    finally:
        sys.dont_write_bytecode = before
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise TargetError(
            f"{folder / module_name}.py has no {attribute}, which `auto_map` names: correct the entry"
        ) from None


def _import_problem(folder: Path, reference: str, error: Exception) -> str:
    """Say in one sentence which file could not be imported, why, and what to do."""
    where = f"{reference.rpartition('.')[0]}.py"
    for frame, line in walk_tb(error.__traceback__):  # the last one in the folder wins
        if name := _name(folder, frame.f_code.co_filename):
            where = f"{name}, line {line},"
    installed = f"transformers {installed_versions().get('transformers', '')}".rstrip()
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if (folder / f"{package}.py").is_file():
            return f"{where} imports {package}, which lies beside it: write `from .{package} import ...`"
        if package != "transformers":
            return f"{where} imports {error.name}, which is not installed: install {package}"
        return f"{where} imports {error.name}, which {installed} does not have{_advice(folder)}"
    if isinstance(error, ImportError) and (match := _MISSING_NAME.search(str(error))):
        name, module = match.groups()
        package = module.partition(".")[0]
        version = installed if package == "transformers" else f"the installed {package}"
        return f"{where} imports {name} from {module}, which {version} does not have{_advice(folder)}"
    return f"{where} raised {error_line(error)}{_other_release(folder)}"


def _name(folder: Path, file: str) -> str:
    """Return the path of a file inside the folder; empty if it is elsewhere."""
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else ""


def _advice(folder: Path) -> str:
    written_for = read_config(folder / "config.json").get("transformers_version")
    release = f" (config.json says {written_for})" if written_for else ""
    return f": install the release that the code was written for{release}"


def _other_release(folder: Path) -> str:
    """Name the release that the code was written for, in a clause, if that is not the one installed."""
    written_for = str(read_config(folder / "config.json").get("transformers_version") or "")
    here = installed_versions().get("transformers", "")
    if not written_for or written_for.split(".")[:2] == here.split(".")[:2]:
        return ""
    return (
        f"; config.json is from transformers {written_for}, and {here} is installed: if that is why, install the other"
    )
