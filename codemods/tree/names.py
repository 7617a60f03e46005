"""Resolve names to classes over the files of a tree: what a file defines, imports, and binds at module level."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from ckpt_surgery.codemods.facts.file_facts import Build, FileFacts, Import
from ckpt_surgery.codemods.tree.caching import cached_method, cached_with_cycles
from ckpt_surgery.codemods.tree.classes import ClassRef, External, Target
from ckpt_surgery.model_patches.release_names import LAYER_CLASS

_OTHER_FILES = ("configuration_", "tokenization_", "processing_", "image_processing_", "feature_extraction_")
"""Beginnings of the names of files that define no modules, and are not worth loading."""
_NOTHING = FileFacts(imports=(), classes=(), values=(), functions=(), provided={})

Loader = Callable[[str], FileFacts | None]


def by_module(paths: Iterable[str]) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Map the names by which absolute imports may reach files to the folder where each name starts, and the file."""
    named: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in paths:
        steps = path.removesuffix(".py").removesuffix(f"{os.sep}__init__").split(os.sep)
        for start in range(len(steps) - 1, -1, -1):
            named[".".join(steps[start:])].append((os.sep.join([*steps[:start], ""]), path))
    return {name: sorted(files, key=lambda file: -len(file[0])) for name, files in named.items()}


class TreeNames:
    """The names of the files in `files`, which maps paths to facts.

    `load` is asked for files that an import names and `files` lacks, and returns None if there is no such file. These
    are files of the tree that were not worth parsing (`unparsed`), or a parent model beside a file checked alone.
    """

    def __init__(self, files: Mapping[str, FileFacts], load: Loader, unparsed: Collection[str] = ()) -> None:
        self.files = dict(files)
        self.checked = tuple(files)
        self.unparsed = frozenset(unparsed)
        self._load = load

    def facts(self, path: str) -> FileFacts | None:
        """Return the facts of a file, loaded when an import leads there for the first time."""
        if path not in self.files:
            loaded = self._load(path)
            if loaded is None:
                return None
            self.files[path] = loaded
        return self.files[path]

    def guarded_alias(self, path: str, name: str) -> Import | None:
        """Return the guarded import that binds `name` to a class of another name, if its statement imports no more."""
        facts = self.facts(path)
        imports = [item for item in facts.imports if item.guard] if facts else []
        alias = next((item for item in imports if item.name == name != item.original != ""), None)
        return alias if alias and sum(item.span == alias.span for item in imports) == 1 else None

    def read(self, path: str) -> FileFacts:
        """Return the facts of a file; those of an empty one if it cannot be read."""
        return self.files.get(path) or self.facts(path) or _NOTHING

    @cached_method
    def classes(self, path: str) -> tuple[ClassRef, ...]:
        """Return every class of a file, in order."""
        return tuple(ref for refs in self._by_name(path).values() for ref in refs)

    @cached_method
    def checked_classes(self) -> tuple[ClassRef, ...]:
        """Return every class of the files that are checked, not of those loaded to understand them."""
        return tuple(ref for path in self.checked for ref in self.classes(path))

    def defined(self, path: str, name: str) -> list[ClassRef]:
        """Return the classes of this name that a file defines itself: two if `if` and `else` each define one."""
        return self._by_name(path).get(name, [])

    @cached_method
    def _by_name(self, path: str) -> dict[str, list[ClassRef]]:
        by_name: dict[str, list[ClassRef]] = {}
        for cls in self.read(path).classes:
            by_name.setdefault(cls.name, []).append(ClassRef(path, cls))
        return by_name

    @cached_with_cycles(())
    def named(self, path: str, name: str) -> tuple[Target, ...]:
        """Return what `name` may mean at module level of a file: classes of the tree, or external ones."""
        if name.rpartition(".")[2] == LAYER_CLASS:
            return (External(LAYER_CLASS, "transformers.modeling_layers"),)
        local = self.defined(path, name)
        targets: list[Target] = [*local]
        for module, original in self._origins(path, name):
            targets += self._imported(path, module, original)
        for value_name, built in () if local else self.read(path).values:
            if value_name == name:
                targets += self._of_value(path, built)
        return tuple(targets)

    @cached_with_cycles(None)
    def function(self, path: str, name: str) -> tuple[str, str] | None:
        """Find the function that `name` means at module level of a file: its file, and its name there."""
        if name in self.read(path).functions:
            return path, name
        starred = ((item.module, name) for item in self._imports(path).get("*", ()))
        for module, original in (*self._origins(path, name), *starred):
            for file in self._files(path, module):
                if place := self.function(file, original):
                    return place
        return None

    @cached_method
    def _imports(self, path: str) -> Mapping[str, Sequence[Import]]:
        imports: dict[str, list[Import]] = defaultdict(list)
        for item in self.read(path).imports:
            imports[item.name].append(item)
        return imports

    def _origins(self, path: str, name: str) -> Iterator[tuple[str, str]]:
        """Yield the modules that a file may import a name from, and what it is called there."""
        head, _, rest = name.partition(".")
        for item in self._imports(path).get(head, ()):
            below = item.module if item.module.endswith(".") else f"{item.module}."
            module = below + item.original if rest and item.original else item.module
            yield module, rest or item.original or name

    def _files(self, path: str, module: str) -> Iterator[str]:
        """Yield the files that a module name may mean: relative to a file, and as an absolute import."""
        target = self._module_file(path, module)
        if target:
            yield target
            yield os.path.join(target.removesuffix(".py"), "__init__.py")
        for folder, file in self._by_module.get(module, ()):
            if path.startswith(folder):
                yield file

    @cached_property
    def _by_module(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        return by_module((*self.checked, *self.unparsed))

    def _imported(self, path: str, module: str, name: str) -> Iterator[Target]:
        for file in self._files(path, module):
            if self.facts(file) is not None:
                if targets := self.named(file, name):
                    yield from targets
                    return
                if self.function(file, name):
                    return  # not a class; `Containers` follows what it returns
        yield External(name, module)

    @cached_method
    def _module_file(self, path: str, module: str) -> str | None:
        """Return the file of a relative import, or of `transformers.models.x.y` beside the tree's own models."""
        if module.startswith("."):
            inner = module.lstrip(".")
            folder = path
            for _ in range(len(module) - len(inner)):
                folder = os.path.dirname(folder)
        elif module.startswith("transformers.models."):
            before, models, _ = path.rpartition(f"{os.sep}models{os.sep}")
            folder = f"{before}{models}" if models else "transformers"
            inner = module.removeprefix("transformers.models.")
        else:
            return None
        if not inner or (os.path.basename(folder) == "transformers" and not inner.startswith("models.")):
            return None  # transformers' own core is known by name and never read
        if inner.rpartition(".")[2].startswith(_OTHER_FILES):
            return None
        return os.path.join(folder, *inner.split(".")) + ".py"

    def _of_value(self, path: str, built: Build) -> Iterator[Target]:
        """Yield the classes that a value names: `A = B`, `A = B if fast else C`, `{"a": A, "b": B}`."""
        if built.kind == "class":
            yield from self.named(path, built.name) or (External(built.name, ""),)
        elif built.kind in ("choice", "container"):
            for item in built.items:
                yield from self._of_value(path, item)
