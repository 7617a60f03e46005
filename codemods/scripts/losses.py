"""Which losses of a script are computed around the DistributedDataParallel wrapper: what its calls do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ckpt_surgery.codemods.facts.script_facts import Bypass, Spot
from ckpt_surgery.codemods.facts.syntax import dotted, span_of, walk
from ckpt_surgery.codemods.scripts.flow import Flow, Frame
from ckpt_surgery.codemods.scripts.names import (
    Function,
    Names,
    is_accelerator,
    is_distributed_data_parallel,
    methods,
    parameters,
    tail,
    words,
)
from ckpt_surgery.codemods.scripts.values import UNTRACED, BypassingForward, Inner, TracedValue, join, mix

Stack: TypeAlias = tuple[tuple[int, int], ...]

_UNWRAP = {"unwrap_model", "extract_model_from_parallel"}
_SAME_MODULE = words("to cuda train eval half float bfloat16 double requires_grad_ compile convert_sync_batchnorm")
_CUTS = words("detach item numpy tolist generate deepcopy DataParallel FullyShardedDataParallel FSDP")
"""Calls whose result has no gradient, or is another module or another kind of wrapper."""
_NOT_FORWARD = words(
    """
    state_dict load_state_dict save_pretrained push_to_hub parameters named_parameters modules named_modules children
    named_children buffers named_buffers zero_grad apply register_forward_hook gradient_checkpointing_enable
    enable_input_require_grads disable_adapter set_adapter num_parameters items keys values size step
    """
)
_RUNS_NOTHING = words(
    """
    isinstance hasattr len print type id callable issubclass repr str int float bool range
    clip_grad_norm_ clip_grad_value_ iter next enumerate zip tqdm
    """
)
_RUNS_A_MODEL = {"compute_loss", "functional_call"}
_SYNCHRONISES = re.compile(r"(sync|average|avg|reduce)\w*grad|grad\w*(sync|average|reduce)", re.I)


@dataclass(frozen=True, slots=True)
class _EvaluatedCall:
    """A call whose parts are evaluated, each once."""

    node: ast.Call
    name: str
    base: TracedValue
    """The object that the method belongs to; UNTRACED for a function."""
    callee: TracedValue
    positional: tuple[TracedValue, ...]
    keywords: tuple[tuple[str | None, TracedValue], ...]

    @property
    def args(self) -> tuple[TracedValue, ...]:
        return (*self.positional, *(value for _, value in self.keywords))


class LossReader(Flow):
    """Finds forwards around a wrapper whose result a backward pass depends on."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.wrapped: dict[str, str] = {}
        """Objects that were wrapped, and the identity of the wrapper of each."""
        self.backwards: dict[tuple[BypassingForward, int], list[Stack]] = {}
        self.syncs: list[Stack] = []
        self.relevant = self._relevant()

    def _relevant(self) -> set[str]:
        """The functions and classes that deal with wrappers themselves, or call one that does.

        Others are followed only where a wrapper, a module inside one or a loss is passed to them.
        """
        units: dict[str, ast.AST] = {**self.names.functions, **self.names.classes}
        calls = {
            name: {tail(node.func) for node in walk(unit) if isinstance(node, ast.Call)}
            for name, unit in units.items()
        }
        relevant = {name for name, unit in units.items() if any(map(self._is_sign, walk(unit)))}
        relevant |= {name for name, cls in self.names.classes.items() if self.names.is_trainer(cls)}
        top = [statement for statement in self.names.tree.body if not isinstance(statement, Function | ast.ClassDef)]
        if any(self._is_sign(node) for statement in top for node in walk(statement)):
            return set(units)
        while more := {name for name, called in calls.items() if name not in relevant and called & relevant}:
            relevant |= more
        return relevant

    def _is_sign(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and node.attr == "module":
            return True
        if isinstance(node, ast.Call):
            name = tail(node.func)
            return (
                name in _UNWRAP or _prepares(node.func) or is_distributed_data_parallel(self.names.origin(node.func))
            )
        return False

    def read(self) -> Iterator[Bypass]:
        """Each such forward, once, unless the script synchronises the gradients itself."""
        for _ in range(2):  # by the second pass, what methods further down assign to `self` is known
            self.backwards.clear()
            self.syncs.clear()
            self._everything()
        seen: set[Spot] = set()
        for (forward, line), stacks in self.backwards.items():
            if forward.spot not in seen and not self._made_up(line, stacks):
                seen.add(forward.spot)
                inner = forward.inner
                yield Bypass(forward.spot, forward.callee, inner.how, forward.method, inner.sure, forward.runs, line)

    def _made_up(self, line: int, stacks: Sequence[Stack]) -> bool:
        """Whether gradients are synchronised after the backward pass, in a function that leads to both."""
        if not line:
            return bool(self.syncs)
        return any(
            function == other and after > before
            for stack in stacks
            for function, before in stack
            for sync in self.syncs
            for other, after in sync
        )

    def _everything(self) -> None:
        top = Frame("", self.names.tree)
        self.block(top, self.names.tree.body)
        for name, function in self.names.functions.items():
            if name in self.relevant:
                self.follow(top, function, None, {})
        for cls in self.names.classes.values():
            if any(ancestor.name in self.relevant for ancestor in self.names.lineage(cls)):
                for function in methods(cls):
                    self._method(top, cls, function)

    def _method(self, top: Frame, cls: ast.ClassDef, function: Function) -> None:
        """A method on its own. A Trainer passes the wrapped model to some, and runs backward on their loss."""
        given: dict[str, TracedValue] = {}
        asked = function.name in ("compute_loss", "training_step") and self.names.is_trainer(cls)
        if asked and parameters(function)[1:2] == ["model"]:
            given["model"] = TracedValue(wrappers=frozenset({"Trainer"}))
        result = self.follow(top, function, cls, given)
        if given and function.name == "compute_loss":
            for forward in result.around:
                self.backwards.setdefault((forward, 0), []).append(())

    def own(self, cls: ast.ClassDef, name: str) -> TracedValue:
        """`self.name`; in a Trainer of transformers `self.model` is the module inside."""
        if (
            name == "model"
            and self.names.is_trainer(cls, "transformers", "trl")
            and (cls.name, name) not in self.attributes
        ):
            return TracedValue(inners=frozenset({Inner("self.model", "Trainer", True)}))
        return super().own(cls, name)

    def attribute(self, node: ast.Attribute, base: TracedValue) -> TracedValue:
        """`base.attr`: `.module` of a wrapper, or of something unknown, is the module inside."""
        if node.attr == "module" and not base.around and not base.through:
            return base.inside(ast.unparse(node)) if base.wrappers or base.inners or base.is_unknown else UNTRACED
        return base.part() if base.inners else base.computed

    def assign(self, frame: Frame, target: ast.expr, value: ast.expr) -> None:
        """`target = value`; `a, b = accelerator.prepare(a, b)` goes pairwise."""
        match target, value:
            case (ast.Tuple(elts=targets), ast.Call(func=func, args=items)) if _prepares(func) and len(targets) == len(
                items
            ):
                wrappers = [self._wrap(self.value(frame, item), value, f".{at}") for at, item in enumerate(items)]
                for inner_target, wrapper in zip(targets, wrappers, strict=True):
                    self.bind(frame, inner_target, wrapper)
            case _:
                super().assign(frame, target, value)

    # -- calls

    def call(self, frame: Frame, node: ast.Call) -> TracedValue:
        """What a call returns: a wrapper, the module inside, a loss, what a function of this file returns."""
        call = self._looked_at(frame, node)
        func = node.func
        first = call.positional[0] if call.positional else UNTRACED
        if node.args and (is_distributed_data_parallel(self.names.origin(func)) or _prepares(func)):
            return self._wrap(first, node)
        self._note(frame, call)
        local = self._local(frame, func)
        if local and frame.may_enter(local[0]) and self._is_worth(frame, call):
            return self._enter(frame, call, *local)
        if call.name in _UNWRAP:
            return first.inside(ast.unparse(node))
        if call.name in _CUTS:
            return UNTRACED
        if call.name in _SAME_MODULE:
            return call.base if isinstance(func, ast.Attribute) and not self.names.is_module(func.value) else first
        if call.name == "getattr":
            return first.part()
        if isinstance(func, ast.Attribute) and call.name in ("append", "extend", "update"):
            self.bind(frame, func.value, join([call.base, *(value.computed for value in call.args)]))
            return UNTRACED
        return self._foreign(frame, call)

    def _looked_at(self, frame: Frame, node: ast.Call) -> _EvaluatedCall:
        func = node.func
        base = self.value(frame, func.value) if isinstance(func, ast.Attribute) else UNTRACED
        if isinstance(func, ast.Attribute) and not dotted(func):
            callee = self.attribute(func, base)
        else:
            callee = self.value(frame, func)
        positional = tuple(self.value(frame, argument) for argument in node.args)
        keywords = tuple((keyword.arg, self.value(frame, keyword.value)) for keyword in node.keywords)
        return _EvaluatedCall(node, tail(func), base, callee, positional, keywords)

    def _foreign(self, frame: Frame, call: _EvaluatedCall) -> TracedValue:
        """A call of code outside this file: perhaps a forward, through the wrapper or around it."""
        node, name = call.node, call.name
        result = TracedValue(objects=frozenset({frame.place(node)}))
        if name in _RUNS_NOTHING or frame.quiet:
            return result
        callee, owner = self._saved(call.callee, node.func), UNTRACED
        if isinstance(node.func, ast.Attribute):
            owner = self._saved(call.base, node.func.value)
        if callee.wrappers or (owner.wrappers and name == "forward") or any(value.wrappers for value in call.args):
            return TracedValue(through=True)
        if owner.inners and name in _NOT_FORWARD:
            return result
        if owner.inners and name.startswith("get_") and not call.args:
            return owner.part()
        computed = mix([*call.args, call.base])
        if computed.through:
            return computed
        inners = callee.inners or owner.inners
        if inners:
            method = name if any(not inner.part for inner in owner.inners) else ""
            return self._forward(frame, node, inners, method, runs=True)
        handed = [self._saved(value, argument) for value, argument in zip(call.positional, node.args, strict=True)]
        whole = frozenset(inner for value in handed for inner in value.inners if not inner.part)
        if whole and (name in _RUNS_A_MODEL or "loss" in name.lower()):
            return self._forward(frame, node, whole, "", runs=name in _RUNS_A_MODEL)
        return TracedValue(result.objects, around=computed.around)

    def _forward(
        self, frame: Frame, node: ast.Call, inners: frozenset[Inner], method: str, *, runs: bool
    ) -> TracedValue:
        spot, callee = self._spot(frame, node), ast.unparse(node.func)
        return TracedValue(
            around=frozenset(
                BypassingForward(inner.site or spot, callee, inner._replace(site=None), method, runs)
                for inner in inners
            )
        )

    def _saved(self, value: TracedValue, node: ast.expr) -> TracedValue:
        """An object that was wrapped is the module inside, unless it may be the wrapper itself by now."""
        wrappers = [self.wrapped[identity] for identity in value.objects if identity in self.wrapped]
        if not wrappers or value.wrappers or value.inners:
            return value
        return TracedValue(inners=frozenset(Inner(ast.unparse(node), wrapper, True) for wrapper in wrappers))

    def _note(self, frame: Frame, call: _EvaluatedCall) -> None:
        """Note backward passes, and synchronisation of gradients by the script itself."""
        func = call.node.func
        if call.name == "backward" and isinstance(func, ast.Attribute):
            taken = is_accelerator(func.value) or self.names.origin(func) == "torch.autograd.backward"
            loss = call.args[0] if taken and call.args else call.base
            for forward in loss.around:
                self.backwards.setdefault((forward, call.node.lineno), []).append(frame.stack())
        elif _SYNCHRONISES.search(call.name) or (call.name.startswith("all_reduce") and _has_gradients(frame.node)):
            self.syncs.append(frame.stack())

    def _wrap(self, value: TracedValue, node: ast.expr, part: str = "") -> TracedValue:
        identity = f"{node.lineno}:{node.col_offset}{part}"
        for plain in value.objects:
            self.wrapped[plain] = identity
        return TracedValue(wrappers=value.wrappers or frozenset({identity}))

    def _local(self, frame: Frame, func: ast.expr) -> tuple[Function, ast.ClassDef | None] | None:
        """The function of this file that a call runs."""
        match func:
            case ast.Name(id=name):
                looked: Frame | None = frame
                while looked:
                    if name in looked.functions:
                        return looked.functions[name], None
                    looked = looked.outer
                return (self.names.functions[name], None) if name in self.names.functions else None
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if frame.cls:
                method = self.names.method(frame.cls, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if frame.cls:
                method = self.names.method(frame.cls, name, above=True)
            case _:
                return None
        return (method, frame.cls) if method else None

    def _is_worth(self, frame: Frame, call: _EvaluatedCall) -> bool:
        """Whether a function of this file deals with wrappers, by itself or through its arguments."""
        if (
            call.name in self.relevant
            or isinstance(call.node.func, ast.Attribute)
            or frame.outer is not frame.outermost()
        ):
            return True
        return any(
            value.wrappers
            or value.inners
            or value.around
            or value.through
            or any(identity in self.wrapped for identity in value.objects)
            for value in call.args
        )

    def _enter(self, frame: Frame, call: _EvaluatedCall, function: Function, cls: ast.ClassDef | None) -> TracedValue:
        spot = self._spot(frame, call.node)
        params = parameters(function)
        if cls and not any(tail(decorator) == "staticmethod" for decorator in function.decorator_list):
            params = params[1:]
        starred = any(isinstance(argument, ast.Starred) for argument in call.node.args)
        given = {} if starred else dict(zip(params, call.positional, strict=False))
        given |= {name: value for name, value in call.keywords if name in params}
        return self.follow(frame, function, cls, {name: value.handed(spot) for name, value in given.items() if name})

    def _spot(self, frame: Frame, node: ast.expr) -> Spot:
        return Spot(span_of(node), frame.line, frame.scope)


def _prepares(func: ast.expr) -> bool:
    """`accelerator.prepare`."""
    return isinstance(func, ast.Attribute) and func.attr in ("prepare", "prepare_model") and is_accelerator(func.value)


def _has_gradients(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Attribute) and inner.attr == "grad" for inner in walk(node))
