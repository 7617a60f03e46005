"""Forwards whose positional parameters a series changed, with all calls of them that the checkout's code shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ckpt_surgery.upstream.evidence.changed_forwards import changed_forwards
from ckpt_surgery.upstream.evidence.forward_calls import callers_of
from ckpt_surgery.upstream.evidence.results import SignatureChange


def changed_signatures(before: Path, after: Path, files: Sequence[str]) -> tuple[SignatureChange, ...]:
    """The forwards that no longer take what callers may pass by position, sorted by place.

    A forward is listed if a positional parameter was moved, removed or renamed, if one lost its default or was added
    without one, or if `*args` was removed. New parameters with defaults behind the old ones, annotations and
    keyword-only parameters break no such caller. Only classes with a forward of their own in both trees are compared;
    a generated class is listed beside the one that it is generated from.

    Args:
        before, after: the tops of two trees, of which `after` is the finished series.
        files: paths relative to both. Files that are no Python source, or in one tree only, are skipped.
    """
    changed = [forward for file in sorted(set(files)) for forward in changed_forwards(before, after, file)]
    if not changed:
        return ()
    callers = callers_of(after, changed)
    return tuple(
        SignatureChange(
            path=forward.file,
            line=forward.line,
            class_name=forward.name,
            before=forward.before,
            after=forward.after,
            callers=tuple(f"{path}:{line}" for path, line in sorted(callers[forward])),
        )
        for forward in changed
    )
