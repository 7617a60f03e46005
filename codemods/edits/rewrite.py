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
"""What makes a repair. Each takes what its repair says beside file and span, under the same names."""


def transformed(tree: cst.Module, repairs: Iterable[repair.SourceRepair]) -> cst.Module:
    """Return a module after all its repairs.

    They are made from the last in the text to the first, as occurrences are counted from the start. None of them may
    change what another one changes.

    Raises:
        PlaceError: the module does not have what one of them is to change.
    """
    last_first = sorted(dict.fromkeys(repairs), key=lambda made: made.span[:2] if made.span else (), reverse=True)
    for made in last_first:
        said = {field.name: getattr(made, field.name) for field in fields(made)}
        options = {name: value for name, value in said.items() if name not in ("path", "span") and value is not None}
        tree = TRANSFORMERS[type(made)](**options).transform_module(tree)
    return tree


def rewritten(text: str, repairs: Iterable[repair.SourceRepair], step: str = "") -> str | None:
    """Return a part of a file after its repairs; None where one of them cannot be made.

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
