"""Trace which losses of a script are computed without going through its DistributedDataParallel wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ckpt_surgery.codemods.facts.interpreter import Function, Interpreter
from ckpt_surgery.codemods.facts.script_facts import Bypass, Spot
from ckpt_surgery.codemods.facts.syntax import dotted, drops_gradient, span_of, walk
from ckpt_surgery.codemods.scripts.names import Names, is_accelerator, parameters, tail, words
from ckpt_surgery.codemods.scripts.ranks import asks_for_several
from ckpt_surgery.codemods.scripts.slices import SYNCHRONISES, UNWRAP, functions_to_follow, prepares
from ckpt_surgery.codemods.scripts.values import UNTRACED, Inner, Reached, TracedValue

_DEEPEST = 6
"""How many calls deep the script's own functions are followed."""
_MOST_STEPS = 50_000
"""Calls evaluated for one file: a script whose functions call each other without end stops here."""
_SAME_MODULE = words("to cuda train eval half float bfloat16 double requires_grad_ compile convert_sync_batchnorm")
_CUT_OFF = words("detach item numpy tolist generate deepcopy DataParallel FullyShardedDataParallel FSDP")
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


@dataclass(slots=True)
class _Frame:
    """A function that is being followed, and the line reached in it."""

    node: ast.AST
    scope: str = ""
    cls: ast.ClassDef | None = None
    functions: dict[str, Function] = field(default_factory=dict)
    """The functions that were defined in it, or around it in other functions."""
    env: Mapping[str, TracedValue] = field(default_factory=dict)
    line: int = 0


class _EvaluatedCall(NamedTuple):
    """A call whose parts are evaluated, each once; `owner` is the object that a method belongs to."""

    node: ast.Call
    name: str
    owner: TracedValue
    callee: TracedValue
    positional: Sequence[TracedValue]
    keywords: Mapping[str | None, TracedValue]

    @property
    def args(self) -> tuple[TracedValue, ...]:
        return (*self.positional, *self.keywords.values())


class LossReader(Interpreter[TracedValue]):
    """Finds forwards that bypass a wrapper, and whose result a backward pass depends on."""

    nothing = UNTRACED

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names
        self.frames = [_Frame(names.tree)]
        """The calls being followed, from the module inwards."""
        self.no_gradient = False
        self.attributes: dict[tuple[str, str], TracedValue] = {}
        """What the methods of a class assign to the attributes of `self`."""
        self.wrapped: dict[str, str] = {}
        """Objects that were wrapped, and the identity of the wrapper of each."""
        self.made: dict[str, tuple[ast.AST, int, tuple[ast.AST, ...]]] = {}
        """The function in which each wrapper is made, the line, and the loops around it."""
        self.asked: dict[tuple[str, str], TracedValue | None] = {}
        """What was known of each attribute when it was read."""
        self.bare: dict[str, set[Reached]] = {}
        """Where each object was used before anything had wrapped it, or after something else had."""
        self.bypasses: dict[Bypass, None] = {}
        self.synchronises = False
        self.steps = 0

    @property
    def gave_up(self) -> bool:
        """Whether the script was too large to follow to the end."""
        return self.steps >= _MOST_STEPS

    @property
    def frame(self) -> _Frame:
        """The function that is being followed."""
        return self.frames[-1]

    @property
    def is_quiet(self) -> bool:
        """Whether no gradient has to be synchronised here: under `no_grad`, or in a single process."""
        return self.no_gradient or any(asks_for_several(test) is (not truth) for test, truth in self.conditions)

    def read(self) -> tuple[Bypass, ...]:
        """Return each such forward once; none if the script synchronises the gradients itself."""
        followed = functions_to_follow(self.names)
        if followed is None:
            return ()
        self._follow_all(followed)
        late = [key for key, value in self.asked.items() if self.attributes.get(key) != value]
        used = ((self.wrapped[name], at) for name in self.bare.keys() & self.wrapped for at in self.bare[name])
        if late or not all(self._is_to_come(wrapper, at) for wrapper, at in used):
            # the second time, what was read too early is known: what methods further down assign to `self`
            self.bypasses.clear()
            self._follow_all(followed)
        by_spot: dict[Spot, Bypass] = {}
        for bypass in () if self.synchronises else self.bypasses:
            by_spot.setdefault(bypass.spot, bypass)
        return tuple(by_spot.values())

    def _follow_all(self, followed: Iterable[tuple[Function, ast.ClassDef | None]]) -> None:
        """Follow the module and these functions and methods, each on its own."""
        self.env = {}
        self.follow(self.names.tree.body)
        for function, cls in followed:
            # A Trainer passes the wrapped model to some methods, and runs backward on their loss.
            by_trainer = cls and function.name in ("compute_loss", "training_step") and self.names.is_trainer(cls)
            is_given = by_trainer and list(parameters(function))[1:2] == ["model"]
            model = TracedValue(wrappers=frozenset({"Trainer"}))
            result = self._run(function, cls, {"model": model} if is_given else {})
            if is_given and function.name == "compute_loss":
                self.bypasses |= dict.fromkeys(result.around)

    def _may_run(self, function: Function) -> bool:
        """Tell whether a function is not being followed already, and the calls are not too deep."""
        return all(frame.node is not function for frame in self.frames) and len(self.frames) <= _DEEPEST

    def _run(self, function: Function, cls: ast.ClassDef | None, given: Mapping[str, TracedValue]) -> TracedValue:
        """Return what a function returns when it is called with these values."""
        caller = self.frame
        caller.env, caller.line = self.env, self.statement.lineno
        outer = caller if function.name in caller.functions else self.frames[0]
        scope = ".".join(filter(None, [cls.name if cls else outer.scope, function.name]))
        env = dict(outer.env)
        for name, parameter in parameters(function).items():
            env[name] = TracedValue(objects=frozenset({f"{scope} {name}"}))
            if parameter.annotation and self.names.is_wrapper(parameter.annotation):
                env[name] = TracedValue(wrappers=frozenset({scope}))
        no_gradient = self.no_gradient
        self.no_gradient |= any(map(drops_gradient, function.decorator_list))
        self.frames.append(_Frame(function, scope, cls or outer.cls, dict(outer.functions)))
        returned = self.enter(function.body, {**env, **given})
        self.frames.pop()
        self.no_gradient = no_gradient
        return self.join(returned)

    # -- statements

    def join(self, values: Sequence[TracedValue]) -> TracedValue:
        """Merge the values. A wrapper in one and the module inside it in another make an unwrapped model."""
        if len(values) == 1:
            return values[0]
        inners = frozenset[Inner]().union(*(value.inners for value in values))
        wrappers = frozenset[str]().union(*(value.wrappers for value in values))
        return TracedValue(
            objects=frozenset[str]().union(*(value.objects for value in values)),
            wrappers=wrappers - {inner.wrapper for inner in inners},
            inners=inners,
            around=frozenset[Bypass]().union(*(value.around for value in values)),
            through=any(value.through for value in values),
        )

    def compute(self, values: Sequence[TracedValue]) -> TracedValue:
        through = sum(value.through for value in values)
        around = frozenset[Bypass]().union(*(value.around for value in values if through - value.through == 0))
        return TracedValue(around=around, through=through > 0)

    def define(self, node: Function | ast.ClassDef) -> None:
        """Follow a function inside a function where it is defined, too."""
        if len(self.frames) > 1 and isinstance(node, Function):
            self.frame.functions[node.name] = node
            if self._may_run(node):
                self._run(node, None, {})

    def inside(self, node: ast.With | ast.AsyncWith) -> bool:
        before = self.no_gradient
        self.no_gradient |= any(drops_gradient(item.context_expr) for item in node.items)
        ended = super().inside(node)
        self.no_gradient = before
        return ended

    def assume(self, test: ast.expr, truth: bool) -> None:
        """Note what a test shows where it is true, or false: is this the wrapper, or the bare model?"""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.assume(operand, not truth)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == truth:
                for value in values:
                    self.assume(value, truth)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[right]):
                if isinstance(op, ast.Is) == truth:
                    for side in (left, right):
                        if self.value(side).inners:
                            self.bind(side, UNTRACED)
            case ast.Call(func=ast.Name(id="isinstance"), args=[subject, kinds]):
                every = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                if any(self.names.is_wrapper(kind) for kind in every):
                    wrappers = self.value(subject).wrappers or frozenset({dotted(subject)})
                    self.bind(subject, TracedValue(wrappers=wrappers) if truth else UNTRACED)
            case ast.Call(func=ast.Name(id="hasattr"), args=[subject, ast.Constant(value="module")]) if not truth:
                self.bind(subject, UNTRACED)

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Follow `target = value`; `a, b = accelerator.prepare(a, b)` goes pairwise."""
        match target, value:
            case ast.Tuple(elts=targets), ast.Call(func=func, args=items) if prepares(func) and len(targets) == len(
                items
            ):
                wrappers = [self._wrap(self.value(item), value, f".{at}") for at, item in enumerate(items)]
                for inner_target, wrapper in zip(targets, wrappers, strict=True):
                    self.bind(inner_target, wrapper)
            case _:
                super().assign(target, value)

    def store(self, target: ast.Attribute | ast.Subscript, value: TracedValue) -> None:
        """Keep `a.b = value` as a name; what is put into a container is added to what it holds."""
        if isinstance(target, ast.Subscript):
            self.bind(target.value, self.join([self.value(target.value), value.computed]))
        elif name := dotted(target):
            self.env[name] = value
            head, _, attribute = name.partition(".")
            if head == "self" and self.frame.cls:
                key = (self.frame.cls.name, attribute)
                self.attributes[key] = self.join([self.attributes.get(key, value), value])

    # -- expressions

    def item(self, container: TracedValue) -> TracedValue:
        return container.computed

    def part(self, value: TracedValue, position: int) -> TracedValue:
        """Return one of the values that a tuple is unpacked into: another object, computed in the same way."""
        return value._replace(objects=frozenset(f"{identity}.{position}" for identity in value.objects))

    def subscript(self, node: ast.Subscript) -> TracedValue:
        """Return all that a container holds."""
        return self.value(node.value)

    def attribute(self, node: ast.Attribute, base: TracedValue) -> TracedValue:
        """Return `base.attr`: `.module` of a wrapper, or of something unknown, is the module inside."""
        name, cls = dotted(node), self.frame.cls
        if name in self.env:
            return self.env[name]
        if isinstance(node.value, ast.Name) and node.value.id == "self" and cls:
            return self._own(cls, node.attr)
        if node.attr == "module" and not base.around and not base.through:
            is_unknown = any(" " in identity for identity in base.objects)  # a parameter, or set elsewhere
            return base.inside(ast.unparse(node)) if base.wrappers or base.inners or is_unknown else UNTRACED
        return base.part if base.inners else base.computed

    def _own(self, cls: ast.ClassDef, name: str) -> TracedValue:
        """Return `self.name`; in a Trainer of transformers `self.model` is the module inside."""
        for key in ((ancestor.name, name) for ancestor in self.names.lineage(cls)):
            self.asked.setdefault(key, self.attributes.get(key))
            if key in self.attributes:
                return self.attributes[key]
        if name == "model" and self.names.is_trainer(cls, "transformers", "trl"):
            return TracedValue(inners=frozenset({Inner("self.model", "Trainer", True)}))
        return TracedValue(objects=frozenset({f"{cls.name} self.{name}"}))

    def call(self, node: ast.Call) -> TracedValue:
        """Return what a call returns: a wrapper, the module inside, a loss, the result of a function of this file."""
        self.steps += 1
        if self.gave_up:
            return UNTRACED
        func, owner = node.func, UNTRACED
        if isinstance(func, ast.Attribute):
            owner = self.value(func.value)
            callee = self.attribute(func, owner)
        else:
            callee = self.value(func)
        positional = [self.value(argument) for argument in node.args]
        keywords = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
        call = _EvaluatedCall(node, tail(func), owner, callee, positional, keywords)
        first = positional[0] if positional else UNTRACED
        if node.args and (self.names.is_wrapper(func) or prepares(func)):
            return self._wrap(first, node)
        self._note(call)
        local = self._local(func)
        if local and self._may_run(local) and self._is_worth(call):
            return self._run_called(call, local)
        if call.name in UNWRAP:
            return first.inside(ast.unparse(node))
        if call.name in _CUT_OFF:
            return UNTRACED
        if call.name in _SAME_MODULE:
            is_method = isinstance(func, ast.Attribute) and dotted(func).partition(".")[0] not in self.names.imported
            return owner if is_method else first
        if call.name == "getattr":
            return first.part
        if isinstance(func, ast.Attribute) and call.name in ("append", "extend", "update"):
            self.bind(func.value, self.join([owner, *(value.computed for value in call.args)]))
            return UNTRACED
        return self._foreign(call)

    def _foreign(self, call: _EvaluatedCall) -> TracedValue:
        """Return the result of code outside this file: perhaps of a forward, through the wrapper or around it."""
        node, name = call.node, call.name
        above = "".join(f"{frame.line}>" for frame in self.frames[:-1])
        result = TracedValue(objects=frozenset({f"{above}{node.lineno}:{node.col_offset}"}))
        if name in _RUNS_NOTHING or self.is_quiet:
            return result
        callee, owner = self._as_inner(call.callee, node.func), UNTRACED
        if isinstance(node.func, ast.Attribute):
            owner = self._as_inner(call.owner, node.func.value)
        if callee.wrappers or (owner.wrappers and name == "forward") or any(value.wrappers for value in call.args):
            return TracedValue(through=True)
        if owner.inners and name in _NOT_FORWARD:
            return result
        if owner.inners and name.startswith("get_") and not call.args:
            return owner.part
        computed = self.compute([*call.args, call.owner])
        if computed.through:
            return computed
        if inners := callee.inners or owner.inners:
            method = name if any(not inner.part for inner in owner.inners) else ""
            return self._forward(node, inners, method, runs=True)
        handed = [self._as_inner(value, argument) for value, argument in zip(call.positional, node.args, strict=True)]
        whole = frozenset(inner for value in handed for inner in value.inners if not inner.part)
        if whole and (name in _RUNS_A_MODEL or "loss" in name.lower()):
            return self._forward(node, whole, "", runs=name in _RUNS_A_MODEL)
        return TracedValue(result.objects, around=computed.around)

    def _forward(self, node: ast.Call, inners: frozenset[Inner], method: str, *, runs: bool) -> TracedValue:
        spot, callee = self._spot(node), ast.unparse(node.func)
        bypasses = (Bypass(inner.site or spot, callee, inner.how, method, inner.sure, runs) for inner in inners)
        return TracedValue(around=frozenset(bypasses))

    def _as_inner(self, value: TracedValue, node: ast.expr) -> TracedValue:
        """Return the module inside for an object that was wrapped, unless it may be the wrapper itself by now."""
        if not value.objects or value.wrappers or value.inners:
            return value
        at = self._use(value.objects)
        wrappers = [self.wrapped[identity] for identity in value.objects if identity in self.wrapped]
        wrappers = [wrapper for wrapper in wrappers if not self._is_to_come(wrapper, at)]
        inners = frozenset(Inner(ast.unparse(node), wrapper, True) for wrapper in wrappers)
        return TracedValue(inners=inners) if inners else value

    def _use(self, objects: frozenset[str]) -> Reached:
        """Note and return the place where objects are used, if nothing has wrapped them yet."""
        self.frame.line = self.statement.lineno
        at = Reached(tuple((frame.node, frame.line) for frame in self.frames), self.loops)
        for identity in objects - self.wrapped.keys():
            self.bare.setdefault(identity, set()).add(at)
        return at

    def _is_to_come(self, wrapper: str, at: Reached) -> bool:
        """Tell whether a wrapper is made further down in a running function, so that nothing is inside it yet."""
        function, line, loops = self.made[wrapper]
        return any(node is function and on < line for node, on in at.frames) and set(loops).isdisjoint(at.loops)

    def _note(self, call: _EvaluatedCall) -> None:
        """Note backward passes, and synchronisation of gradients by the script itself."""
        func = call.node.func
        if call.name == "backward" and isinstance(func, ast.Attribute):
            taken = is_accelerator(func.value) or self.names.origin(func) == "torch.autograd.backward"
            loss = call.args[0] if taken and call.args else call.owner
            self.bypasses |= dict.fromkeys(bypass._replace(backward=call.node.lineno) for bypass in loss.around)
        elif SYNCHRONISES.search(call.name) or (
            call.name.startswith("all_reduce")
            and any(isinstance(inner, ast.Attribute) and inner.attr == "grad" for inner in walk(self.frame.node))
        ):
            self.synchronises = True

    def _wrap(self, value: TracedValue, node: ast.expr, part: str = "") -> TracedValue:
        identity = f"{node.lineno}:{node.col_offset}{part}"
        for other in value.objects:
            if self.wrapped.setdefault(other, identity) != identity:
                self.bare.setdefault(other, set()).add(Reached((), ()))  # wrapped twice: to be followed again
        self.wrapped |= dict.fromkeys(value.objects, identity)
        self.made[identity] = (self.frame.node, self.statement.lineno, self.loops)
        return TracedValue(wrappers=value.wrappers or frozenset({identity}))

    def _local(self, func: ast.expr) -> Function | None:
        match func, self.frame.cls:
            case ast.Name(id=name), _:
                return self.frame.functions.get(name) or self.names.functions.get(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name), ast.ClassDef() as cls:
                return self.names.method(cls, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name), ast.ClassDef() as cls:
                return self.names.method(cls, name, above=True)
        return None

    def _is_worth(self, call: _EvaluatedCall) -> bool:
        """Tell whether a function that is called is a method, or sees a wrapper, a module inside one or a loss."""
        if isinstance(call.node.func, ast.Attribute):
            return True
        values = (*call.args, *self.env.values())
        self._use(frozenset[str]().union(*(value.objects for value in values)))
        return any(
            value != TracedValue(value.objects) or not self.wrapped.keys().isdisjoint(value.objects)
            for value in values
        )

    def _run_called(self, call: _EvaluatedCall, function: Function) -> TracedValue:
        cls = self.frame.cls if isinstance(call.node.func, ast.Attribute) else None
        names = list(parameters(function))
        if cls and not any(tail(decorator) == "staticmethod" for decorator in function.decorator_list):
            names = names[1:]
        starred = any(isinstance(argument, ast.Starred) for argument in call.node.args)
        given = {} if starred else dict(zip(names, call.positional, strict=False))
        given |= {name: call.keywords[name] for name in names if name in call.keywords}
        spot = self._spot(call.node)
        for name, value in given.items():
            inners = frozenset(inner._replace(site=inner.site or spot) for inner in value.inners)
            given[name] = value._replace(inners=inners) if inners else value
        return self._run(function, cls, given)

    def _spot(self, node: ast.expr) -> Spot:
        return Spot(span_of(node), self.statement.lineno, self.frame.scope)
