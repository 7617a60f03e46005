"""Taking out methods that keep late releases of transformers from switching checkpointing layers on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree


def old_switches(tree: SourceTree, layers: Collection[ClassRef]) -> Iterator[ClassRef]:
    """The models of transformers with an old switch in the files of these layers and of what runs them."""
    owners = {owner for layer in layers for owner, _ in tree.blocks.callers.get(layer, ())}
    paths = {layer.path for layer in layers} | {owner.path for owner in owners}
    paths |= {base.path for owner in owners for base in tree.bases.lineage(owner)}
    models = (ref for path in sorted(paths.intersection(tree.checked)) for ref in tree.names.classes(path))
    return (ref for ref in models if ref.cls.old_switch and tree.bases.is_pretrained(ref))


def without_switch(tree: SourceTree, ref: ClassRef) -> Edit:
    """The edit that takes the old switch out of a class, with the comments right above it."""
    switch = ref.cls.old_switch
    assert switch is not None
    source = tree.source(ref.path)
    start = source.offset(switch.first_line, 0)
    end = source.line_end(source.offset(switch.span.end_line, 0))
    indent = source.indent(source.range(switch.span)[0])
    if switch.alone:
        return Edit(ref.path, start, end, f"{indent}pass")
    while (above := _line_above(source, start)) is not None and above[1].startswith(f"{indent}#"):
        start = above[0]
    while (above := _line_above(source, start)) is not None and not above[1].strip():
        start = above[0]
    if above is not None and source.offset(ref.cls.header.end_line, 0) == above[0]:
        # the first statement of the class: what follows moves up
        following = source.text[end:]
        return Edit(ref.path, start, end + len(following) - len(following.lstrip("\r\n")), "")
    return Edit(ref.path, start - len(source.newline), end, "")


def _line_above(source: SourceText, start: int) -> tuple[int, str] | None:
    """Where the line before the one that begins at `start` begins, and its text."""
    if start == 0:
        return None
    above = source.line_start(start - 1)
    return above, source.text[above : source.line_end(above)]
