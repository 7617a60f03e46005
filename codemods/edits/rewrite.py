"""The transformers of a text's repairs, one after another: parsed once, changed by each, written once."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from ckpt_surgery.codemods.edits.arguments import RearrangeArguments
from ckpt_surgery.codemods.edits.comments import RemoveComment
from ckpt_surgery.codemods.edits.derived_class import AddDerivedLayer, DeriveFromImport
from ckpt_surgery.codemods.edits.imports import AddImport, RemoveImports
from ckpt_surgery.codemods.edits.inline_branch import RemoveInlineBranch
from ckpt_surgery.codemods.edits.inline_expression import RemoveInlineExpression
from ckpt_surgery.codemods.edits.layer_base import LayerBase
from ckpt_surgery.codemods.edits.methods import RemoveMethod
from ckpt_surgery.codemods.edits.names import RenameOccurrence
from ckpt_surgery.codemods.edits.parameters import ReorderParameters
from ckpt_surgery.codemods.edits.targeted import ModuleTransformer, PlaceError
from ckpt_surgery.codemods.repair import (
    DeriveImportedLayer,
    DeriveLayer,
    DropComment,
    DropImports,
    DropMethod,
    ImportName,
    KeepElseBranch,
    KeepElseExpression,
    MakeLayer,
    OrderParameters,
    PassArguments,
    ReplaceName,
    SourceRepair,
)

_FEEDS = re.compile(r"^(\f+)(?=[^\f\r\n])", re.M)
_MARK = "#\N{MIDDLE DOT}"
_MARKED = re.compile(rf"[ \t]*(\f*){_MARK}\n")


def transformer_of(repair: SourceRepair) -> ModuleTransformer:
    """The transformer that makes a repair.

    Raises:
        TypeError: there is none.
    """
    match repair:
        case MakeLayer(target=cls):
            return LayerBase(cls)
        case ImportName(module=module, name=name, width=width):
            return AddImport(module, name, width=width)
        case DropImports(names=names, width=width):
            return RemoveImports(names, width=width)
        case KeepElseBranch(target=branch, guards=guards, width=width):
            return RemoveInlineBranch(branch, guards=guards, width=width)
        case KeepElseExpression(target=expression, width=width):
            return RemoveInlineExpression(expression, width=width)
        case PassArguments(target=call, arguments=arguments, width=width):
            return RearrangeArguments(call, arguments, width=width)
        case OrderParameters(target=method, names=names):
            return ReorderParameters(method, names)
        case DropMethod(target=method):
            return RemoveMethod(method)
        case DeriveLayer(target=base, name=name, docstring=docstring):
            return AddDerivedLayer(base, name, docstring)
        case DeriveImportedLayer(name=name, original=original):
            return DeriveFromImport(name, original)
        case ReplaceName(target=occurrence, new=new):
            return RenameOccurrence(occurrence, new)
        case DropComment(target=owner, comment=comment):
            return RemoveComment(owner, comment)
    raise TypeError(f"no transformer makes a {type(repair).__name__}")


def transformed(tree: cst.Module, repairs: Iterable[SourceRepair]) -> cst.Module:
    """A module after all its repairs, the last in the text first: what counts occurrences counts those before it.

    None of the repairs may change what another one changes.

    Raises:
        PlaceError: the module does not have what one of them is to change.
    """
    for repair in sorted(dict.fromkeys(repairs), key=_place, reverse=True):
        tree = transformer_of(repair).transform_module(tree)
    return tree


def rewritten(text: str, repairs: Iterable[SourceRepair], step: str = "") -> str | None:
    """A part of a file after its repairs; None where one of them cannot be made, or the part is too deep for libcst.

    `step` is the indentation of one level, if the part shows none.
    """
    fed = "\f" in text  # libcst drops a form feed in front of code, and keeps one in front of a comment
    try:
        tree = cst.parse_module(_FEEDS.sub(rf"\1{_MARK}\n", text) if fed else text)
        if step and not any(isinstance(line, cst.BaseCompoundStatement) for line in tree.body):
            tree = tree.with_changes(default_indent=step)
        code = transformed(tree, repairs).code
        return _MARKED.sub(r"\1", code) if fed else code
    except (PlaceError, cst.ParserSyntaxError, RecursionError):
        return None


def _place(repair: SourceRepair) -> tuple[int, int]:
    return (repair.span.line, repair.span.column) if repair.span else (0, 0)
