"""The calls of changed forwards that the checkout's code shows.

Seen are the calls that the tree index follows, which are those on `self` and what it holds, in
`src/transformers/models`, and calls anywhere in the checkout that name the class (`Block.forward(...)`). Not seen are
calls of a module that came as an argument, was taken out of another module or has a name made at run time, calls on
models elsewhere in the checkout (its tests, its examples), and all code outside the checkout.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckpt_surgery.codemods.facts.file_facts import AttributePath
from ckpt_surgery.codemods.facts.module_flow import ModuleFlow
from ckpt_surgery.codemods.finding import RuleContext
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.static.discover import discover, read_sources
from ckpt_surgery.static.reading import gc_paused
from ckpt_surgery.static.snapshot import take_snapshot
from ckpt_surgery.upstream.evidence.changed_forwards import ChangedForward
from ckpt_surgery.upstream.layout import MODELS, text_of

Callers = dict[ChangedForward, set[tuple[str, int]]]
"""The calls of each forward: path relative to the top, and line."""
_Call = tuple[ChangedForward, str, int]
"""The forward that a call runs, and the call's file and line."""


def callers_of(top: Path, changed: Sequence[ChangedForward]) -> Callers:
    """The calls of each changed forward: path relative to the top, and line."""
    callers: Callers = {forward: set() for forward in changed}
    files, _ = discover([top / MODELS]) if (top / MODELS).is_dir() else ([], [])
    with gc_paused():
        sources, _ = read_sources(files)
        snapshot, _ = take_snapshot(sources, jobs=None, cache=True, progress=None)
        context = snapshot.context((), include_unsupported=True)
        for target, path, line in _CallFinder(context, _targets(context, top, changed)).all():
            callers[target].add((Path(path).relative_to(top).as_posix(), line))
    _add_unbound(top, callers)
    return callers


def _targets(context: RuleContext, top: Path, changed: Sequence[ChangedForward]) -> dict[ClassRef, ChangedForward]:
    """The changed classes as the tree index has them."""
    targets: dict[ClassRef, ChangedForward] = {}
    for forward in changed:
        path = str(top / forward.file)
        for ref in context.tree.names.classes(path) if path in context.tree.names.files else ():
            if ref.name == forward.name and ref.cls.forward and ref.cls.forward.span.line == forward.line:
                targets[ref] = forward
    return targets


@dataclass(slots=True)
class _CallFinder:
    """The calls of some forwards in the classes of a tree."""

    context: RuleContext
    targets: Mapping[ClassRef, ChangedForward]

    def all(self) -> Iterator[_Call]:
        """All calls: the forward that runs, the file and the line. Some are listed more than once."""
        yield from self._in_stacks()
        yield from self._of_attributes()
        yield from self._of_parents()

    def _run_by(self, user: ClassRef, paths: Sequence[AttributePath], method: str) -> Iterator[ChangedForward]:
        """What calls at these paths run, in a method of `user` and in its heirs that inherit the method.

        What a modular file inherits runs in the file that is generated from it, which is read on its own.
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

    def _in_stacks(self) -> Iterator[_Call]:
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

    def _of_attributes(self) -> Iterator[_Call]:
        """Calls of an attribute that is an instance: `self.block(...)`, `self.model.block.forward(...)`."""
        names = sorted(self._attributes())
        call = re.compile(rf"\.(?:{'|'.join(map(re.escape, names))})(?:\.forward|\.__call__)?\(")
        for path in self.context.tree.checked if names else ():
            text = self.context.tree.text(path)
            if not call.search(text):
                continue
            refs = {ref.cls.span.line: ref for ref in self.context.tree.names.classes(path)}
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.lineno in refs:
                    yield from self._in_class(refs[node.lineno], node, names)

    def _in_class(self, ref: ClassRef, node: ast.ClassDef, names: Sequence[str]) -> Iterator[_Call]:
        for method in node.body:
            if isinstance(method, ast.FunctionDef):
                for called, line in _called(method, names):
                    paths = tuple(ModuleFlow({}).value(called).paths)
                    for target in self._run_by(ref, paths, method.name):
                        yield target, ref.path, line

    def _attributes(self) -> set[str]:
        """The names of the attributes, outside any stack, that hold an instance whose forward is a changed one."""
        tree = self.context.tree
        runs = {
            ref
            for target in self.targets
            for ref in (target, *tree.bases.heirs(target))
            if (forward := tree.bases.forward(ref)) and forward[0] is target
        }
        held = {pair for ref in runs for pair in tree.containers.holders.get(ref.name, ())}
        return {attribute for ref, attribute in held if runs & set(tree.containers.reached(ref, (attribute,)))}

    def _of_parents(self) -> Iterator[_Call]:
        """`super().forward(...)` in a class whose next forward is a changed one."""
        tree = self.context.tree
        for target, forward in self.targets.items():
            for heir in tree.bases.heirs(target):
                following = next(_having(list(tree.bases.lineage(heir))[1:], "forward"), None)
                if following is target:
                    text = self.context.tree.source(heir.path).of(heir.cls.span)
                    for match in re.finditer(r"\bsuper\([^()]*\)\.(?:forward|__call__)\(", text):
                        yield forward, heir.path, heir.cls.span.line + text.count("\n", 0, match.start())


def _called(method: ast.FunctionDef, names: Sequence[str]) -> Iterator[tuple[ast.Attribute, int]]:
    """The attributes of these names that a method calls, and the lines; `layer.forward` means the layer."""
    for node in ast.walk(method):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr in ("forward", "__call__"):
            function = function.value
        if isinstance(node, ast.Call) and isinstance(function, ast.Attribute) and function.attr in names:
            yield function, node.lineno


def _having(classes: Iterable[ClassRef], method: str) -> Iterator[ClassRef]:
    return (ref for ref in classes if any(own.name == method for own in ref.cls.methods))


def _add_unbound(top: Path, callers: Callers) -> None:
    """Add the calls without an instance, `Block.forward(block, ...)`, in all of the checkout."""
    by_name: dict[str, list[ChangedForward]] = defaultdict(list)
    for forward in callers:
        by_name[forward.name].append(forward)
    unbound = re.compile(rf"\b({'|'.join(map(re.escape, by_name))})\.(?:forward|__call__)\(")
    for path in top.rglob("*.py"):
        text = text_of(path)
        for match in unbound.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            for forward in by_name[match[1]]:
                callers[forward].add((path.relative_to(top).as_posix(), line))
