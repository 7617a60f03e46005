"""Run the transformers of a text's repairs: the text is parsed once, changed by each, and written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

import libcst as cst

from ckpt_surgery.codemods import repair
from ckpt_surgery.codemods.edits.arguments import RearrangeArguments, RenameOccurrence
from ckpt_surgery.codemods.edits.imports import AddImport, RemoveImports
from ckpt_surgery.codemods.edits.inline import RemoveInlineBranch
from ckpt_surgery.codemods.edits.layer_base import AddDerivedLayer, DeriveFromImport, LayerBase
from ckpt_surgery.codemods.edits.methods import RemoveComment, RemoveMethod, ReorderParameters
from ckpt_surgery.codemods.edits.paths import ModuleTransformer, PlaceError

TRANSFORMERS: Mapping[type[repair.SourceRepair], Callable[..., ModuleTransformer]] = {
    repair.MakeLayer: LayerBase,
    repair.ImportName: AddImport,
    repair.DropImports: RemoveImports,
    repair.KeepElseBranch: RemoveInlineBranch,
    repair.PassArguments: RearrangeArguments,
    repair.OrderParameters: ReorderParameters,
    repair.DropMethod: RemoveMethod,
    repair.DeriveLayer: AddDerivedLayer,
    repair.DeriveImportedLayer: DeriveFromImport,
    repair.ReplaceName: RenameOccurrence,
    repair.DropComment: RemoveComment,
}
"""The transformer for each kind of repair, which takes the repair's fields except `path` and `span`."""


def transformed(tree: cst.Module, repairs: Iterable[repair.SourceRepair]) -> cst.Module:
    """Return a module after all its repairs.

    They are made from the last in the text to the first, because occurrences are counted from the start. No two of
    them may change the same text.

    Raises:
        PlaceError: the module does not contain the target of one of them.
    """
    last_first = sorted(dict.fromkeys(repairs), key=lambda item: item.span[:2] if item.span else (), reverse=True)
    for change in last_first:
        values = {field.name: getattr(change, field.name) for field in fields(change)}
        options = {name: value for name, value in values.items() if name not in ("path", "span") and value is not None}
        tree = TRANSFORMERS[type(change)](**options).transform_module(tree)
    return tree


def rewritten(text: str, repairs: Iterable[repair.SourceRepair], step: str = "") -> str | None:
    """Return a part of a file after its repairs; None if one of them cannot be made.

    Args:
        text: the part. One that is nested too deep for libcst cannot be repaired either.
        repairs: the repairs to make in it.
        step: the indentation of one level, if the part shows none.
    """
    try:
        tree = cst.parse_module(text)
        if step and not any(isinstance(line, cst.BaseCompoundStatement) for line in tree.body):
            tree = tree.with_changes(default_indent=step)
        return transformed(tree, repairs).code
    except (PlaceError, cst.ParserSyntaxError, RecursionError):
        return None
