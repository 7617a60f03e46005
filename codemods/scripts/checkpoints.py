"""Where a script switches checkpointing on, and where it chooses the mode: `use_reentrant`, or the option left out."""

from __future__ import annotations

import ast

from ckpt_surgery.codemods.facts.script_facts import CheckpointMode, CheckpointSwitch, Spot
from ckpt_surgery.codemods.facts.syntax import arguments_of, dotted, span_of
from ckpt_surgery.codemods.scripts.names import Function, Names, is_test, scopes, tail, takes_training_arguments
from ckpt_surgery.model_patches.release_names import SWITCH_ON, TRAINING_SWITCH

_OPTION = "use_reentrant"
_CHECKPOINT = {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}


class CheckpointReader:
    """Reads the modes and the switches of a script, each in the order of the scopes."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.modes: list[CheckpointMode] = []
        self.switches: list[CheckpointSwitch] = []
        for scope, body in scopes(names):
            for statement in body:
                if not isinstance(statement, Function):
                    self._visit(statement, Spot(span_of(statement), statement.lineno, scope), False)

    def _visit(self, node: ast.AST, place: Spot, conditional: bool) -> None:
        """Read a node and what is inside it; `place` is that of its statement."""
        if isinstance(node, ast.stmt):
            place = place._replace(first_line=node.lineno)
        if isinstance(node, ast.Call):
            self._call(node, place, conditional)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == _OPTION:
                    self._mode(value, place, "")
        elif isinstance(node, ast.Assign) and _switches_on(node):
            spot = place._replace(span=span_of(node.value))
            text = f"{ast.unparse(node.targets[0])} = True"
            self.switches.append(CheckpointSwitch(spot, text, "argument", False, conditional))
        conditional = conditional or is_test(node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, Function):
                self._visit(child, place, conditional)

    def _mode(self, value: ast.expr, place: Spot, callee: str) -> None:
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            mode = CheckpointMode(
                place._replace(span=span_of(value)), callee, "reentrant" if value.value else "non_reentrant"
            )
            self.modes.append(mode)

    def _call(self, call: ast.Call, place: Spot, conditional: bool) -> None:
        callee = ast.unparse(call.func)
        spot = place._replace(span=span_of(call))
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if _OPTION in given:
            self._mode(given[_OPTION], place, callee)
        elif self.names.origin(call.func) in _CHECKPOINT and None not in given:
            self.modes.append(CheckpointMode(spot, callee, "default", arguments_of(call)))
        elif tail(call.func) in SWITCH_ON:
            options = bool(call.args or call.keywords)
            self.switches.append(CheckpointSwitch(spot, f"{callee}()", "method", options, conditional))
        elif takes_training_arguments(call):
            for name in sorted({*TRAINING_SWITCH} & {keyword.arg for keyword in call.keywords if keyword.arg}):
                value = given[name]
                if isinstance(value, ast.Constant) and value.value is True:
                    options = f"{name}_kwargs" in given
                    spot = place._replace(span=span_of(value))
                    self.switches.append(CheckpointSwitch(spot, f"{name}=True", "argument", options, conditional))


def _switches_on(statement: ast.Assign) -> bool:
    """`training_args.gradient_checkpointing = True`."""
    match statement:
        case ast.Assign(targets=[ast.Attribute(attr=name, value=owner)], value=ast.Constant(value=True)):
            return name in TRAINING_SWITCH and dotted(owner).lower().endswith(("args", "arguments"))
    return False
