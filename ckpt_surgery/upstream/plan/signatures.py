"""Forwards whose positional parameters a series changed, and every call of them that the checkout's code shows.

Calls are seen where the tree index follows them: on `self` and what it holds, in `src/transformers/models`; and
anywhere in the checkout where a class is named (`Block.forward(...)`). Not seen: calls of a module that came as an
argument, was taken out of another module or has a name made at run time, calls on models elsewhere in the checkout
(its tests, its examples), and all code outside it.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.facts.file_facts import Path as Steps
from ckpt_surgery.codemods.facts.method_values import SELF, value_of
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.static.discover import discover, read_sources
from ckpt_surgery.static.reading import gc_paused
from ckpt_surgery.static.snapshot import take_snapshot
from ckpt_surgery.upstream.evidence.results import Signature
from ckpt_surgery.upstream.plan.layout import MODELS, text_of


def changed_signatures(before: Path, after: Path, files: Sequence[str]) -> tuple[Signature, ...]:
    """The forwards that no longer take_snapshot what their callers may pass by position, sorted by place.

    A forward is one of these where a positional parameter was moved, lost or renamed, where one has no default any
    more or was added without one, and where `*args` went. New parameters with defaults behind the old ones, new
    annotations and what is by keyword only break no such caller. Only classes with a forward of their own in both
    trees are compared; a generated class is listed beside the one that it is generated from.

    Args:
        before, after: the tops of two trees, of which `after` is the finished series.
        files: paths relative to both. What is no Python file, or in one tree alone, has nothing to compare.
    """
    changed = [found for file in sorted(set(files)) for found in _changed(before, after, file)]
    if not changed:
        return ()
    callers = _callers(after, changed)
    return tuple(
        Signature(one.file, one.line, one.name, one.before, one.after, tuple(_places(callers[one]))) for one in changed
    )


@dataclass(frozen=True, slots=True)
class _Forward:
    """One class's own forward: the line of its `def`, and its arguments without `self` and annotations."""

    line: int
    arguments: ast.arguments

    @property
    def names(self) -> list[str]:
        return [one.arg for one in (*self.arguments.posonlyargs, *self.arguments.args)]

    @property
    def required(self) -> set[str]:
        """The positional parameters without a default."""
        return set(self.names[: len(self.names) - len(self.arguments.defaults)])


@dataclass(frozen=True, slots=True)
class _Changed:
    """A class whose forward changed, as it is in the finished series."""

    file: str
    line: int
    name: str
    before: str
    after: str


_Callers = dict[_Changed, set[tuple[str, int]]]


# --- two trees --------------------------------------------------------------------------------------------


def _changed(before: Path, after: Path, file: str) -> Iterator[_Changed]:
    trees = (before / file, after / file)
    if not file.endswith(".py") or not all(map(Path.is_file, trees)):
        return
    old, new = map(_forwards, trees)
    for key, now in new.items():
        then = old.get(key)
        if then is not None and _breaks(then, now):
            yield _Changed(file, now.line, key[0], ast.unparse(then.arguments), ast.unparse(now.arguments))


def _forwards(path: Path) -> dict[tuple[str, int], _Forward]:
    """The forward of each class that has its own, in order; the key counts classes of one name."""
    found: dict[tuple[str, int], _Forward] = {}
    seen: dict[str, int] = defaultdict(int)
    classes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ClassDef)]
    for node in sorted(classes, key=lambda one: one.lineno):
        own = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "forward"), None)
        if own is not None:
            found[node.name, seen[node.name]] = _Forward(own.lineno, _plain(own.args))
        seen[node.name] += 1
    return found


def _plain(arguments: ast.arguments) -> ast.arguments:
    plain = copy.deepcopy(arguments)
    for one in ast.walk(plain):
        if isinstance(one, ast.arg):
            one.annotation = None
    del (plain.posonlyargs or plain.args)[:1]
    return plain


def _breaks(before: _Forward, after: _Forward) -> bool:
    """Whether a call that fitted `before`, with its arguments by position, may not fit `after`."""
    moved = after.names[: len(before.names)] != before.names
    lost_rest = before.arguments.vararg is not None and after.arguments.vararg is None
    return moved or lost_rest or not after.required <= before.required


# --- calls of what changed --------------------------------------------------------------------------------


def _places(callers: set[tuple[str, int]]) -> Iterator[str]:
    return (f"{path}:{line}" for path, line in sorted(callers))


def _callers(top: Path, changed: Sequence[_Changed]) -> _Callers:
    """The calls of each changed forward: path relative to the top, and line."""
    found: _Callers = {one: set() for one in changed}
    files, _ = discover([top / MODELS]) if (top / MODELS).is_dir() else ([], [])
    with gc_paused():
        sources, _ = read_sources(files)
        snapshot, _ = take_snapshot(sources, jobs=None, cache=True, progress=None)
        context = snapshot.context((), include_unsupported=True)
        for target, path, line in _Calls(context, _targets(context, top, changed)).all():
            found[target].add((Path(path).relative_to(top).as_posix(), line))
    _add_unbound(top, found)
    return found


def _targets(context: RuleContext, top: Path, changed: Sequence[_Changed]) -> dict[ClassRef, _Changed]:
    """The changed classes as the index knows them."""
    found: dict[ClassRef, _Changed] = {}
    for one in changed:
        path = str(top / one.file)
        for ref in context.tree.names.classes(path) if path in context.tree.names.files else ():
            if ref.name == one.name and ref.cls.forward and ref.cls.forward.span.line == one.line:
                found[ref] = one
    return found


@dataclass(slots=True)
class _Calls:
    """The calls of some forwards in the classes of a tree."""

    context: RuleContext
    targets: Mapping[ClassRef, _Changed]

    def all(self) -> Iterator[tuple[_Changed, str, int]]:
        """Every call found: what it runs, its file and its line; some more than once."""
        yield from self._in_stacks()
        yield from self._of_attributes()
        yield from self._of_parents()

    def _run_by(self, user: ClassRef, paths: Sequence[Steps], method: str) -> Iterator[_Changed]:
        """What calls at these paths run, in a method of `user`, and in its heirs that have the method from it.

        What a modular file inherits runs in the file generated from it, which is looked at on its own.
        """
        tree = self.context.tree
        heirs = [
            heir
            for heir in tree.bases.heirs(user)
            if (heir.path == user.path or not Path(heir.path).name.startswith("modular_"))
            and next(_having(tree.bases.lineage(heir), method), None) is user
        ]
        for owner in (user, *heirs):
            for block in tree.containers.classes_at(owner, paths):
                forward = tree.bases.forward(block)
                if forward and forward[0] in self.targets:
                    yield self.targets[forward[0]]

    def _in_stacks(self) -> Iterator[tuple[_Changed, str, int]]:
        """Calls of the elements of stacks, checkpointed ones among them."""
        for ref in self.context.tree.names.checked_classes():
            for call in ref.cls.calls:
                for target in self._run_by(ref, call.paths, call.method):
                    yield target, ref.path, call.span.line
            for inline in ref.cls.inlines:
                for checkpoint in inline.checkpoints:
                    line = checkpoint.args[0].span.line if checkpoint.args else inline.span.line
                    for target in self._run_by(ref, checkpoint.paths, inline.method):
                        yield target, ref.path, line

    def _of_attributes(self) -> Iterator[tuple[_Changed, str, int]]:
        """Calls of an attribute that is an instance: `self.block(...)`, `self.model.block.forward(...)`."""
        names = sorted(self._attributes())
        wanted = re.compile(rf"\.(?:{'|'.join(map(re.escape, names))})(?:\.forward|\.__call__)?\(")
        for path in self.context.tree.checked if names else ():
            text = self.context.tree.text(path)
            if not wanted.search(text):
                continue
            refs = {ref.cls.span.line: ref for ref in self.context.tree.names.classes(path)}
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.lineno in refs:
                    yield from self._in_class(refs[node.lineno], node, names)

    def _in_class(
        self, ref: ClassRef, node: ast.ClassDef, names: Sequence[str]
    ) -> Iterator[tuple[_Changed, str, int]]:
        for method in node.body:
            if isinstance(method, ast.FunctionDef):
                for called, line in _called(method, names):
                    paths = tuple(value_of(called, {"self": SELF}).paths)
                    for target in self._run_by(ref, paths, method.name):
                        yield target, ref.path, line

    def _attributes(self) -> set[str]:
        """The names of the attributes that hold an instance of what runs a changed forward, outside any stack."""
        tree = self.context.tree
        runs = {
            ref
            for target in self.targets
            for ref in (target, *tree.bases.heirs(target))
            if (forward := tree.bases.forward(ref)) and forward[0] is target
        }
        held = {pair for ref in runs for pair in tree.containers.holders.get(ref.name, ())}
        return {attribute for ref, attribute in held if runs & set(tree.containers.reached(ref, (attribute,)))}

    def _of_parents(self) -> Iterator[tuple[_Changed, str, int]]:
        """`super().forward(...)` in a class whose next forward is a changed one."""
        tree = self.context.tree
        for target, one in self.targets.items():
            for heir in tree.bases.heirs(target):
                following = next(_having(list(tree.bases.lineage(heir))[1:], "forward"), None)
                if following is target:
                    text = self.context.tree.source(heir.path).of(heir.cls.span)
                    for match in re.finditer(r"\bsuper\([^()]*\)\.(?:forward|__call__)\(", text):
                        yield one, heir.path, heir.cls.span.line + text.count("\n", 0, match.start())


def _called(method: ast.FunctionDef, names: Sequence[str]) -> Iterator[tuple[ast.Attribute, int]]:
    """The attributes of these names that a method calls, and the lines; `layer.forward` means the layer."""
    for node in ast.walk(method):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr in ("forward", "__call__"):
            function = function.value
        if isinstance(node, ast.Call) and isinstance(function, ast.Attribute) and function.attr in names:
            yield function, node.lineno


def _having(classes: Iterable[ClassRef], method: str) -> Iterator[ClassRef]:
    return (ref for ref in classes if method in ref.cls.methods)


def _add_unbound(top: Path, found: _Callers) -> None:
    """Add the calls without an instance, `Block.forward(block, ...)`, in all of the checkout."""
    named: dict[str, list[_Changed]] = defaultdict(list)
    for one in found:
        named[one.name].append(one)
    unbound = re.compile(rf"\b({'|'.join(map(re.escape, named))})\.(?:forward|__call__)\(")
    for path in top.rglob("*.py"):
        text = text_of(path)
        for match in unbound.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            for one in named[match[1]]:
                found[one].add((path.relative_to(top).as_posix(), line))
