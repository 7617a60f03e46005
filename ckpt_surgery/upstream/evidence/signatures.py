"""Forwards whose positional parameters a series changed, with the calls of them that the checkout's code shows.

Seen are the calls that a class in `src/transformers/models` makes of its own stacks and attributes. Not seen are calls
of modules that it was given or took out of others, and code elsewhere.
"""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ckpt_surgery.codemods.finding import RuleContext
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.static.discover import discover, read_sources
from ckpt_surgery.static.reading import gc_paused
from ckpt_surgery.static.snapshot import take_snapshot
from ckpt_surgery.upstream.evidence.results import SignatureChange
from ckpt_surgery.upstream.layout import MODELS


def changed_signatures(before: Path, after: Path, files: Sequence[str]) -> tuple[SignatureChange, ...]:
    """Return the forwards that no longer take what callers may pass by position, sorted by place, with their callers.

    A generated class is listed beside the one that it is generated from.

    Args:
        before, after: the tops of two trees, of which `after` is the finished series.
        files: paths relative to both. Files that are not Python source, or in one tree only, are skipped.
    """
    changed = [forward for file in sorted(set(files)) for forward in changed_forwards(before, after, file)]
    if not changed:
        return ()
    callers: dict[SignatureChange, set[tuple[str, int]]] = {forward: set() for forward in changed}
    files_after, _ = discover([after / MODELS]) if (after / MODELS).is_dir() else ([], [])
    with gc_paused():
        sources, _ = read_sources(files_after)
        snapshot, _ = take_snapshot(sources, jobs=None, cache=True, progress=None)
        context = snapshot.context((), include_unsupported=True)
        for target, path, line in _calls(context, after, changed):
            callers[target].add((Path(path).relative_to(after).as_posix(), line))
    return tuple(
        replace(forward, callers=tuple(f"{path}:{line}" for path, line in sorted(callers[forward])))
        for forward in changed
    )


def changed_forwards(before: Path, after: Path, file: str) -> Iterator[SignatureChange]:
    """Yield the forwards of one file, a path relative to both trees, that a caller by position may not fit any more.

    That is so if a positional parameter was moved, removed or renamed, if one lost its default or was added without
    one, or if `*args` was removed. Only classes with a forward of their own in both trees are compared.
    """
    paths = (before / file, after / file)
    if not file.endswith(".py") or not all(map(Path.is_file, paths)):
        return
    forwards_before, forwards_after = map(_own_forwards, paths)
    for key, (line, new) in forwards_after.items():
        _, old = forwards_before.get(key, (line, new))
        names, new_names = ([argument.arg for argument in (*a.posonlyargs, *a.args)] for a in (old, new))
        required = set(names[: len(names) - len(old.defaults)])
        new_required = set(new_names[: len(new_names) - len(new.defaults)])
        lost_rest = old.vararg is not None and new.vararg is None
        if new_names[: len(names)] != names or lost_rest or not new_required <= required:
            yield SignatureChange(file, line, key[0], ast.unparse(old), ast.unparse(new))


def _own_forwards(path: Path) -> dict[tuple[str, int], tuple[int, ast.arguments]]:
    """Return the forward of each class that defines one: its line, and its arguments without `self` and annotations.

    The number in the key counts classes of the same name.
    """
    forwards: dict[tuple[str, int], tuple[int, ast.arguments]] = {}
    seen: dict[str, int] = defaultdict(int)
    classes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ClassDef)]
    for node in sorted(classes, key=lambda node: node.lineno):
        methods = (method for method in node.body if isinstance(method, ast.FunctionDef))
        own = next((method for method in methods if method.name == "forward"), None)
        if own is not None:
            plain = copy.deepcopy(own.args)
            for argument in ast.walk(plain):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            del (plain.posonlyargs or plain.args)[:1]
            forwards[node.name, seen[node.name]] = own.lineno, plain
        seen[node.name] += 1
    return forwards


def _calls(
    context: RuleContext, top: Path, changed: Sequence[SignatureChange]
) -> Iterator[tuple[SignatureChange, str, int]]:
    """Yield the calls of changed forwards by classes that hold the module: the forward, the file and the line.

    Checkpointed calls are among them. A call in a class also counts for its heirs that inherit the method; what a
    modular file inherits runs in the file that is generated from it, which is read on its own.
    """
    tree = context.tree
    targets: dict[ClassRef, SignatureChange] = {}
    for change in changed:
        path = str(top / change.path)
        for ref in tree.names.classes(path) if path in tree.names.files else ():
            if ref.name == change.class_name and ref.cls.forward and ref.cls.forward.span.line == change.line:
                targets[ref] = change
    for ref in tree.names.checked_classes():
        calls = [(call.paths, call.method, call.span.line) for call in ref.cls.calls]
        for inline in ref.cls.inlines:
            for checkpoint in inline.checkpoints:
                line = checkpoint.args[0].span.line if checkpoint.args else inline.span.line
                calls.append((checkpoint.paths, inline.method, line))
        for paths, method, line in calls:
            owners = [ref]
            for heir in tree.bases.heirs(ref):
                holders = (
                    base for base in tree.bases.lineage(heir) if any(own.name == method for own in base.cls.methods)
                )
                if next(holders, None) is ref and (heir.path == ref.path or "/modular_" not in heir.path):
                    owners.append(heir)
            for block in (block for owner in owners for block in tree.containers.classes_at(owner, paths)):
                forward = tree.bases.forward(block)
                if forward and forward[0] in targets:
                    yield targets[forward[0]], ref.path, line
