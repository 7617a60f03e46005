"""Verify broken models in a transformers that has another name for something, in a separate process.

Usage: python -m tests.measure.renamed_script CLASS=LEVEL,... [NAME ...], with the names of one role separated by |.
Prints JSON objects, for no name and then for each: by class, the outcome of its level in reentrant mode; null where
`verify` refuses. Each is measured in a fork of a process that imported the other packages.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any


class _Renaming(SourceFileLoader):
    """A loader that renames something in a module's source."""

    def __init__(self, loader: SourceFileLoader, name: str) -> None:
        super().__init__(loader.name, loader.path)
        self._renamed = re.compile(rf"\b(?:{name})\b")

    def get_code(self, fullname: str) -> CodeType | None:
        source = self.get_data(self.path).decode("utf-8")
        if self._renamed.search(source) is None:
            return super().get_code(fullname)  # as it was compiled before, which is faster
        renamed = self._renamed.sub("name_of_a_later_release", source)
        return compile(renamed, self.path, "exec", dont_inherit=True)


class _RenamedTransformers(MetaPathFinder):
    """A finder of transformers' modules for a loader that renames."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "transformers":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Renaming(spec.loader, self._name)
        return spec


def outcome(name: str, level: Any) -> str | None:
    import transformers

    from ckpt_surgery import verify
    from ckpt_surgery.errors import CkptSurgeryError
    from ckpt_surgery.tiny import tiny_model

    tiny = tiny_model(getattr(transformers, name))
    try:
        report = verify(tiny.model.train(), tiny.inputs, modes="reentrant", levels=[level])
    except (CkptSurgeryError, TypeError):
        return None
    return report.modes[0].outcomes[level] if report.modes else None


def measured(levels: Mapping[str, str], name: str) -> dict[str, str | None]:
    """Verify classes, each at its level, in a transformers that has another name for something."""
    warnings.simplefilter("ignore")
    if name:
        sys.meta_path.insert(0, _RenamedTransformers(name))
    return {kind: outcome(kind, level) for kind, level in levels.items()}


def libraries(classes: Iterable[str]) -> list[str]:
    """List what the import of these classes imports from other packages."""
    import transformers

    for name in classes:
        getattr(transformers, name)
    return [name for name in sys.modules if name.partition(".")[0] != "transformers"]


def main(broken: str, *names: str) -> None:
    importlib.import_module("torch")
    levels = dict(each.split("=") for each in broken.split(","))
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        wanted = pool.apply(libraries, [[*levels]])
    for library in wanted:
        with suppress(ImportError):
            importlib.import_module(library)
    with context.Pool(1, maxtasksperchild=1) as pool:
        for found in pool.imap(partial(measured, levels), ["", *names]):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
