"""The transformers as libcst commands, for pipelines that already know what to change.

    python -m libcst.tool codemod -x ckpt_surgery.codemods.commands.MakeLayerCommand --class-name FooLayer models

Each takes its target from its options and changes the files that contain it; all other files are skipped. Nothing is
decided here: the commands of `ckpt_surgery.static.commands` find out what to change in a whole tree.
"""

from __future__ import annotations

from abc import abstractmethod
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from ckpt_surgery.codemods.edits.arguments import RearrangeArguments
from ckpt_surgery.codemods.edits.imports import AddImport
from ckpt_surgery.codemods.edits.inline import RemoveInlineBranch
from ckpt_surgery.codemods.edits.layer_base import LayerBase
from ckpt_surgery.codemods.edits.methods import RemoveMethod, ReorderParameters
from ckpt_surgery.codemods.edits.paths import ModuleTransformer, PlaceError
from ckpt_surgery.codemods.repair import Definition, NewArgument, Occurrence
from ckpt_surgery.codemods.tree.source_tree import LINE_LENGTH
from ckpt_surgery.model_patches.release_names import LAYER_CLASS

_HELP: Mapping[str, str | None] = {
    "class_name": None,
    "module": "what the layer is imported from",
    "method": "qualified name, as in FooModel.forward",
    "call": "what is called, as in layer or self.layers[i]",
    "index": "which `if`, or which such call, of the method: counted from 0 in source order",
    "arguments": "the current positions of the arguments, from 0, in their new order; mask=2 passes one by keyword",
    "parameters": "its first parameters after self, in their new order",
    "width": "the maximum line length",
}


class TargetedCommand(CodemodCommand):
    """A command that runs its transformers on each file that contains their targets.

    Each parameter of `transformers` is an option, required if it has no default. The docstring is the description that
    libcst shows.
    """

    def __init_subclass__(cls) -> None:
        cls.DESCRIPTION = cls.__doc__ or ""

    def __init__(self, context: CodemodContext, *options: Any, **named: Any) -> None:
        super().__init__(context)
        self._transformers = self.transformers(*options, **named)

    @classmethod
    def add_args(cls, arg_parser: ArgumentParser) -> None:
        """Add an option for each parameter of `transformers`."""
        for name, parameter in signature(cls.transformers).parameters.items():
            required = parameter.default is parameter.empty
            arg_parser.add_argument(
                f"--{name.replace('_', '-')}",
                required=required,
                default=None if required else parameter.default,
                type=str if required else type(parameter.default),
                nargs="+" if parameter.annotation == "Sequence[str]" else None,
                help=_HELP[name],
            )

    @staticmethod
    @abstractmethod
    def transformers(*options: Any, **named: Any) -> Sequence[ModuleTransformer]:
        """Return the transformers to run on a file, in order."""

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """Return the file after the changes.

        Raises:
            SkipFile: the file does not contain the target.
        """
        try:
            for transformer in self._transformers:
                tree = transformer.transform_module(tree)
        except PlaceError as error:
            raise SkipFile(str(error)) from None
        return tree


class MakeLayerCommand(TargetedCommand):
    """Make a class a GradientCheckpointingLayer, and import the layer class."""

    @staticmethod
    def transformers(class_name: str, module: str = "", width: int = LINE_LENGTH) -> Sequence[ModuleTransformer]:
        layers = module or "transformers.modeling_layers"
        return LayerBase(Definition(class_name)), AddImport(layers, LAYER_CLASS, width=width)


class KeepElseBranchCommand(TargetedCommand):
    """Replace an if of a method by its else branch."""

    @staticmethod
    def transformers(method: str, index: int = 0, width: int = LINE_LENGTH) -> Sequence[ModuleTransformer]:
        return [RemoveInlineBranch(Occurrence(Definition(method), index=index), width=width)]


class PassArgumentsCommand(TargetedCommand):
    """Pass the arguments of a call in another order, by position or by keyword."""

    @staticmethod
    def transformers(
        method: str, call: str, arguments: Sequence[str], index: int = 0, width: int = LINE_LENGTH
    ) -> Sequence[ModuleTransformer]:
        pairs = [argument.rpartition("=") for argument in arguments]  # `2` or `mask=2`
        new = [NewArgument(int(position), keyword or None) for keyword, _, position in pairs]
        return [RearrangeArguments(Occurrence(Definition(method), call, index), new, width=width)]


class OrderParametersCommand(TargetedCommand):
    """Put the first parameters of a method in another order."""

    @staticmethod
    def transformers(method: str, parameters: Sequence[str]) -> Sequence[ModuleTransformer]:
        return [ReorderParameters(Definition(method), parameters)]


class DropMethodCommand(TargetedCommand):
    """Remove a method from its class, with the comments directly above it."""

    @staticmethod
    def transformers(method: str) -> Sequence[ModuleTransformer]:
        return [RemoveMethod(Definition(method))]
