"""Names to classes, over the files of a tree: what a file defines, imports, and binds at module level."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from ckpt_surgery.codemods.facts.file_facts import Build, FileFacts
from ckpt_surgery.codemods.tree.classes import ClassRef, External, Target
from ckpt_surgery.model_patches.release_names import LAYER_CLASS

_NO_MODULES = ("configuration_", "tokenization_", "processing_", "image_processing_", "feature_extraction_")
_DEEPEST = 12
"""Values nested deeper than this are not followed."""

Loader = Callable[[str], FileFacts | None]


class TreeNames:
    """The names of `files` (path to facts).

    `load` is asked for files that an import names and `files` lacks, such as a parent model beside a file that is
    checked alone; it returns None where there is none.
    """

    def __init__(self, files: Mapping[str, FileFacts], load: Loader) -> None:
        self.files = dict(files)
        self.checked = tuple(files)
        self._load = load
        self._classes: dict[str, dict[str, list[ClassRef]]] = {}
        self._named: dict[tuple[str, str], tuple[Target, ...]] = {}
        self._functions: dict[tuple[str, str], tuple[str, str] | None] = {}
        self._parts = {part for path in files for part in _parts(path)}

    def facts(self, path: str) -> FileFacts | None:
        """The facts of a file, loaded when an import leads there for the first time."""
        if path not in self.files:
            loaded = self._load(path)
            if loaded is None:
                return None
            self.files[path] = loaded
            self._parts |= set(_parts(path))
            self._functions.clear()
        return self.files[path]

    def classes(self, path: str) -> list[ClassRef]:
        """Every class of a file, in order."""
        return [ref for refs in self._by_name(path).values() for ref in refs]

    def checked_classes(self) -> Iterator[ClassRef]:
        """Every class of the files that are checked, not of those loaded to understand them."""
        for path in self.checked:
            yield from self.classes(path)

    def defined(self, path: str, name: str) -> list[ClassRef]:
        """The classes of this name that a file defines itself: two where an `if` has one in each branch."""
        return self._by_name(path).get(name, [])

    def _by_name(self, path: str) -> dict[str, list[ClassRef]]:
        by_name = self._classes.get(path)
        if by_name is None:
            by_name = {}
            facts = self.facts(path)
            for cls in facts.classes if facts else ():
                by_name.setdefault(cls.name, []).append(ClassRef(path, cls))
            self._classes[path] = by_name
        return by_name

    def named(self, path: str, name: str) -> tuple[Target, ...]:
        """What `name` may mean at module level of a file: classes of the tree, or external ones."""
        key = (path, name)
        if key not in self._named:
            self._named[key] = ()  # an import cycle ends here
            self._named[key] = tuple(self._lookup(path, name))
        return self._named[key]

    def _lookup(self, path: str, name: str) -> Iterator[Target]:
        head, _, rest = name.partition(".")
        if name.rpartition(".")[2] == LAYER_CLASS:
            yield External(LAYER_CLASS, "transformers.modeling_layers")
            return
        local = self.defined(path, name)
        yield from local
        facts = self.facts(path)
        for item in facts.imports if facts else ():
            if item.name != head:
                continue
            if rest or not item.original:
                dots = item.module if not item.original else _below(item.module, item.original)
                yield from self._imported(path, dots if rest else item.module, rest or name)
            else:
                yield from self._imported(path, item.module, item.original)
        if not local:
            for value_name, built in facts.values if facts else ():
                if value_name == name:
                    yield from self._of_value(path, built)

    def function(self, path: str, name: str) -> tuple[str, str] | None:
        """The file that defines the function which `name` means at module level of a file, and its name there."""
        key = (path, name)
        if key not in self._functions:
            found = self._function(path, name, 0)
            self._functions[key] = found
        return self._functions[key]

    def _function(self, path: str, name: str, depth: int) -> tuple[str, str] | None:
        facts = self.facts(path)
        if facts is None or depth > _DEEPEST:
            return None
        if name in facts.functions:
            return path, name
        head, _, rest = name.partition(".")
        for item in facts.imports:
            if item.original and item.name in ("*", head):
                module = _below(item.module, item.original) if rest else item.module
            elif item.name == head and rest:
                module = item.module
            else:
                continue
            wanted = rest or (name if item.name == "*" else item.original)
            for target in self._helper_files(path, module):
                if found := self._function(target, wanted, depth + 1):
                    return found
        return None

    def _helper_files(self, path: str, module: str) -> Iterator[str]:
        """Where a module's functions may be: also in a package's first file, and behind an absolute import."""
        target = self._module_file(path, module)
        if target:
            yield target
            yield os.path.join(target.removesuffix(".py"), "__init__.py")
        if module[:1] != "." and module.partition(".")[0] in self._parts:
            inner = os.path.join(*module.split("."))
            folder = os.path.dirname(path)
            while folder and folder != os.path.dirname(folder):
                for name in (f"{inner}.py", os.path.join(inner, "__init__.py")):
                    if (absolute := os.path.join(folder, name)) in self.files:
                        yield absolute
                folder = os.path.dirname(folder)

    def _imported(self, path: str, module: str, name: str) -> Iterator[Target]:
        target = self._module_file(path, module)
        if target and self.facts(target) is not None:
            targets = self.named(target, name)
            if targets:
                yield from targets
                return
            if self.function(target, name):
                return  # no class, and `BuildResolver` follows what it returns
        yield External(name, module)

    def _module_file(self, path: str, module: str) -> str | None:
        """The file of a relative import, or of `transformers.models.x.y` beside the tree's own models."""
        if module.startswith("."):
            dots = len(module) - len(module.lstrip("."))
            folder = path
            for _ in range(dots):
                folder = os.path.dirname(folder)
            inner = module.lstrip(".")
        elif module.startswith("transformers.models."):
            position = path.rfind(f"{os.sep}models{os.sep}")
            folder = path[: position + len(f"{os.sep}models")] if position >= 0 else "transformers"
            inner = module.removeprefix("transformers.models.")
        else:
            return None
        if not inner or (os.path.basename(folder) == "transformers" and not inner.startswith("models.")):
            return None  # transformers' own core is known by name and never read
        if inner.rpartition(".")[2].startswith(_NO_MODULES):
            return None
        return os.path.join(folder, *inner.split(".")) + ".py"

    def _of_value(self, path: str, built: Build, depth: int = 0) -> Iterator[Target]:
        """The classes that a module-level value names: `A = B`, `A = B if fast else C`, `{"a": A, "b": B}`."""
        if depth > _DEEPEST:
            return
        if built.kind == "class":
            yield from self.named(path, built.name) or (External(built.name, ""),)
        elif built.kind in ("choice", "container"):
            for item in built.items:
                yield from self._of_value(path, item, depth + 1)


def _below(module: str, name: str) -> str:
    """A module inside another: `.utils` of `from . import utils`."""
    return module + name if module.endswith(".") else f"{module}.{name}"


def _parts(path: str) -> list[str]:
    """The names in a path, as modules are named by them."""
    return path.removesuffix(".py").split(os.sep)
