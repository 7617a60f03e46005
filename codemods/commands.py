"""The transformers as libcst commands, for pipelines that know what they want changed.

    python -m libcst.tool codemod -x ckpt_surgery.codemods.commands.MakeLayerCommand --class-name FooLayer models

Each takes its target from its options and changes the files that have it; every other file is skipped. Nothing is
decided here: what is to be changed in a whole tree is found by `ckpt_surgery.static.commands`.
"""

from __future__ import annotations

from abc import abstractmethod
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from ckpt_surgery.codemods.edits.arguments import RearrangeArguments
from ckpt_surgery.codemods.edits.imports import AddImport
from ckpt_surgery.codemods.edits.inline_branch import RemoveInlineBranch
from ckpt_surgery.codemods.edits.layer_base import LayerBase
from ckpt_surgery.codemods.edits.methods import RemoveMethod
from ckpt_surgery.codemods.edits.parameters import ReorderParameters
from ckpt_surgery.codemods.edits.targeted import ModuleTransformer, PlaceError
from ckpt_surgery.codemods.repair import Definition, NewArgument, Occurrence
from ckpt_surgery.codemods.tree.source_tree import LINE_LENGTH
from ckpt_surgery.model_patches.release_names import LAYER_CLASS

_METHOD = "qualified name, as in FooModel.forward"


class TargetedCommand(CodemodCommand):
    """Makes the changes of its transformers in each file that has their targets."""

    @abstractmethod
    def transformers(self) -> Iterator[ModuleTransformer]:
        """What changes a file, in this order."""

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """The file after the changes.

        Raises:
            SkipFile: the file does not have what is to be changed.
        """
        try:
            for transformer in self.transformers():
                tree = transformer.transform_module(tree)
        except PlaceError as error:
            raise SkipFile(str(error)) from None
        return tree


class MakeLayerCommand(TargetedCommand):
    """A class becomes a GradientCheckpointingLayer, which is imported."""

    DESCRIPTION = "Make a class a GradientCheckpointingLayer and import that."

    def __init__(self, context: CodemodContext, class_name: str, module: str = "", width: int = LINE_LENGTH) -> None:
        super().__init__(context)
        self._class, self._module, self._width = class_name, module or "transformers.modeling_layers", width

    @staticmethod
    def add_args(arg_parser: ArgumentParser) -> None:
        """The class, and where the layer comes from."""
        arg_parser.add_argument("--class-name", required=True)
        arg_parser.add_argument("--module", help="what the layer is imported from", default="")
        _add_width(arg_parser)

    def transformers(self) -> Iterator[ModuleTransformer]:
        """The base, then the import."""
        yield LayerBase(Definition(self._class))
        yield AddImport(self._module, LAYER_CLASS, width=self._width)


class KeepElseBranchCommand(TargetedCommand):
    """An inline branch gives way to its else branch."""

    DESCRIPTION = "Replace an if of a method by its else branch."

    def __init__(self, context: CodemodContext, method: str, index: int = 0, width: int = LINE_LENGTH) -> None:
        super().__init__(context)
        self._branch, self._width = Occurrence(Definition(method), index=index), width

    @staticmethod
    def add_args(arg_parser: ArgumentParser) -> None:
        """The method, and which `if` of it."""
        arg_parser.add_argument("--method", required=True, help=_METHOD)
        arg_parser.add_argument("--index", type=int, default=0, help="which if of the method, from 0 in source order")
        _add_width(arg_parser)

    def transformers(self) -> Iterator[ModuleTransformer]:
        """The one change."""
        yield RemoveInlineBranch(self._branch, width=self._width)


class PassArgumentsCommand(TargetedCommand):
    """A call gets its arguments in another order, by position or by keyword."""

    DESCRIPTION = "Pass the arguments of a call in another order, by position or by keyword."

    def __init__(
        self,
        context: CodemodContext,
        method: str,
        call: str,
        arguments: Sequence[str],
        index: int = 0,
        width: int = LINE_LENGTH,
    ) -> None:
        super().__init__(context)
        self._call, self._width = Occurrence(Definition(method), call, index), width
        self._arguments = [_new_argument(argument) for argument in arguments]

    @staticmethod
    def add_args(arg_parser: ArgumentParser) -> None:
        """The call, and its new arguments."""
        arg_parser.add_argument("--method", required=True, help=_METHOD)
        arg_parser.add_argument("--call", required=True, help="what is called, as in layer or self.layers[i]")
        arg_parser.add_argument("--index", type=int, default=0, help="which such call of the method, from 0")
        arg_parser.add_argument(
            "--arguments",
            nargs="+",
            required=True,
            help="the positions that the arguments have now, from 0, in their new order; mask=2 passes one by keyword",
        )
        _add_width(arg_parser)

    def transformers(self) -> Iterator[ModuleTransformer]:
        """The one change."""
        yield RearrangeArguments(self._call, self._arguments, width=self._width)


class OrderParametersCommand(TargetedCommand):
    """A method takes its first parameters in another order."""

    DESCRIPTION = "Put the first parameters of a method in another order."

    def __init__(self, context: CodemodContext, method: str, parameters: Sequence[str]) -> None:
        super().__init__(context)
        self._method, self._names = Definition(method), tuple(parameters)

    @staticmethod
    def add_args(arg_parser: ArgumentParser) -> None:
        """The method, and its parameters."""
        arg_parser.add_argument("--method", required=True, help=_METHOD)
        arg_parser.add_argument("--parameters", nargs="+", required=True, help="its first parameters after self")

    def transformers(self) -> Iterator[ModuleTransformer]:
        """The one change."""
        yield ReorderParameters(self._method, self._names)


class DropMethodCommand(TargetedCommand):
    """A method goes."""

    DESCRIPTION = "Take a method out of its class, with the comments right above it."

    def __init__(self, context: CodemodContext, method: str) -> None:
        super().__init__(context)
        self._method = Definition(method)

    @staticmethod
    def add_args(arg_parser: ArgumentParser) -> None:
        """The method."""
        arg_parser.add_argument("--method", required=True, help=_METHOD)

    def transformers(self) -> Iterator[ModuleTransformer]:
        """The one change."""
        yield RemoveMethod(self._method)


def _add_width(parser: ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=LINE_LENGTH, help="the longest line")


def _new_argument(text: str) -> NewArgument:
    """`2` is the argument at that position, by position; `mask=2` the same by keyword."""
    keyword, _, position = text.rpartition("=")
    return NewArgument(int(position), keyword or None)
