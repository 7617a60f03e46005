"""Find what attributes are built from: `self.layers = nn.ModuleList([...])`, and every other way to build a stack."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from ckpt_surgery.codemods.facts.file_facts import DYNAMIC, Build
from ckpt_surgery.codemods.facts.interpreter import Function, Interpreter
from ckpt_surgery.codemods.facts.syntax import IN_PLACE, dotted, last_name, span_of

_CONTAINERS = frozenset(
    {"ModuleList", "Sequential", "ModuleDict", "list", "tuple", "dict", "OrderedDict", "set", "reversed"}
)
SEQUENTIAL = "Sequential"
"""The name of a container that calls what it holds."""
_LEARNED = re.compile(r"(?:.*\.)?(?:Bilinear|Conv\w+|Embedding\w*|LayerNorm|Linear|Parameter\w*|RMSNorm)$")
"""The names of torch's parameters, and of its modules with parameters."""
_SELF_RETURNING = frozenset({"_from_config", "from_config", "from_pretrained"}) | IN_PLACE
"""Methods that return an instance of their class, or the module itself."""
LAYER_ENDINGS = ("Layer", "Block", "Stage")
_UNKNOWN = Build("unknown")
_MOST_ITEMS = 24
"""Further items are not followed: a literal with hundreds of them holds no blocks."""


class Builder(Interpreter[Build]):
    """Follows a function body and collects what attributes and results are built from."""

    nothing = _UNKNOWN

    def __init__(self) -> None:
        super().__init__()
        self.attributes: dict[str, list[Build]] = {}

    @classmethod
    def of(cls, function: ast.FunctionDef, attributes: dict[str, list[Build]] | None = None) -> Builder:
        """Follow a function; the attributes that it sets are added to `attributes`, if that is given.

        Its parameters stand for what callers pass. Those of a constructor are layers if their annotations say so.
        """
        builder = cls()
        for node in (*function.args.posonlyargs, *function.args.args):
            annotated = dotted(node.annotation) if node.annotation else ""
            if function.name != "__init__":
                builder.env[node.arg] = Build("param", node.arg)
            elif annotated.endswith(LAYER_ENDINGS):
                builder.env[node.arg] = Build("class", annotated)
        builder.attributes = {} if attributes is None else attributes
        builder.follow(function.body)
        return builder

    @property
    def made(self) -> list[Build]:
        """The builds of what the function returns, as far as they are known."""
        return [built for built in self.returned if built.kind != "unknown"]

    def learned(self, functions: Iterable[ast.FunctionDef]) -> tuple[str, ...]:
        """Return the attributes with parameters, and the methods that return what one of them computes."""
        classes = {
            name: [each for b in builds for each in b.class_names()] for name, builds in self.attributes.items()
        }
        names = {name: None for name, made in classes.items() if any(map(_LEARNED.match, made))}
        for function in functions if names else ():
            match function.body[-1]:
                case ast.Return(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name))):
                    if name in names:
                        names[function.name] = None
        return tuple(names)

    def join(self, values: Sequence[Build]) -> Build:
        longest = max(values, key=lambda value: len(value.items))
        if all(value == longest or value.is_start_of(longest) for value in values):
            return longest  # a list that grows in a loop, or in one branch
        return Build("choice", items=tuple(values))

    def contain(self, values: Sequence[Build]) -> Build:
        return Build("container", items=tuple(values[:_MOST_ITEMS]))

    def item(self, container: Build) -> Build:
        return Build("element", items=(container,))

    def spread(self, value: Build) -> Build:
        return Build("choice", items=value.items)

    def name(self, node: ast.Name) -> Build:
        """Return what a name is bound to, or else a class of that name."""
        return self.env.get(node.id) or (
            _UNKNOWN if node.id.islower() else Build("class", node.id, span=span_of(node))
        )

    def attribute(self, node: ast.Attribute, base: Build) -> Build:
        """Return an attribute of `self` or of what a name is bound to, or else a class of a module."""
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return Build("attribute", node.attr)
        if isinstance(node.value, ast.Name) and self.env.get(node.value.id, _UNKNOWN) != _UNKNOWN:
            return Build("member", node.attr, (base,))
        is_class = not node.attr.islower() and (text := dotted(node))
        return Build("class", text, span=span_of(node)) if is_class else _UNKNOWN

    def compute(self, values: Sequence[Build]) -> Build:
        """Join lists that are added, or repeated."""
        if not any(value.kind == "container" for value in values):
            return _UNKNOWN
        return Build("container", items=tuple(item for value in values for item in value.items))

    def compare(self, node: ast.Compare | ast.UnaryOp) -> Build:
        return _UNKNOWN

    def function(self, node: ast.Lambda) -> Build:
        return self.value(node.body)

    def define(self, node: Function | ast.ClassDef) -> None:
        """Bind a function inside this one to what it returns."""
        if isinstance(node, Function):
            made = [built for built in self.enter(node.body, self.env) if built.kind != "unknown"]
            self.env[node.name] = Build("choice", items=tuple(made)) if made else _UNKNOWN

    def items(self, target: ast.expr, iterable: ast.expr) -> list[tuple[ast.expr, Build]]:
        """Bind `cls` to one of A and B in `for cls in (A, B)`; other loops bind nothing."""
        if isinstance(target, ast.Name) and isinstance(iterable, ast.Tuple | ast.List):
            return [(target, Build("choice", items=self.value(iterable).items))]
        return []

    def bind(self, target: ast.expr, value: Build) -> None:
        """Bind a name or an attribute, or put an item into a container."""
        value = _UNKNOWN if value.is_large() else value
        match target:
            case ast.Name(id=name):
                self.env[name] = value
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.attributes.setdefault(name, []).append(value)
            case ast.Subscript(value=container):
                self._extend(container, [value])

    def augment(self, node: ast.AugAssign) -> None:
        """Follow `container += items`."""
        if isinstance(node.op, ast.Add):
            self._extend(node.target, self.value(node.value).spread())

    def _extend(self, container: ast.expr, items: list[Build]) -> None:
        match container:
            case ast.Name(id=name):
                before = self.env.get(name, _UNKNOWN)
                built = Build("container", before.name * (before.kind == "container"), (*before.items, *items))
                self.env[name] = before if built.is_large() else built
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.attributes.setdefault(name, []).append(Build("container", items=tuple(items)))

    def call(self, node: ast.Call) -> Build:
        """Return what a call builds, after recording what it adds to a container or to `self`."""
        match node:
            case (
                ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id="self"), name, value])
                | ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="add_module"), args=[name, value])
            ):
                is_text = isinstance(name, ast.Constant) and isinstance(name.value, str)
                attribute = str(name.value) if isinstance(name, ast.Constant) and is_text else DYNAMIC
                self.attributes.setdefault(attribute, []).append(self.value(value))
                return _UNKNOWN
            case ast.Call(func=ast.Attribute(value=owner, attr="append" | "add_module" | "insert"), args=[*_, value]):
                self._extend(owner, [self.value(value)])
                return _UNKNOWN
            case ast.Call(func=ast.Attribute(value=owner, attr="extend"), args=[value]):
                self._extend(owner, self.value(value).spread())
                return _UNKNOWN
        return self._made(node)

    def _made(self, node: ast.Call) -> Build:
        name, first = dotted(node.func), node.args[0] if node.args else None
        owner, last = (node.func.value, node.func.attr) if isinstance(node.func, ast.Attribute) else (None, name)
        if last == "map" and first:
            return Build("container", items=(self.value(first),))
        if (last in ("partial", "deepcopy", "DataParallel") or name == "torch.compile") and first:
            return self.value(first)
        if last == "get" and owner:
            return Build("element", items=(self.value(owner),))
        if last == "dict" and node.keywords:
            return self.contain([self.value(keyword.value) for keyword in node.keywords])
        if last in _CONTAINERS:
            modules = [keyword.value for keyword in node.keywords if keyword.arg == "modules"]
            items = tuple(self._unpacked([*node.args, *modules]))
            return Build("container", SEQUENTIAL * (last == SEQUENTIAL), items)
        if last in _SELF_RETURNING and owner:
            return self.value(owner)
        if "clone" in last.lower() and first:
            return Build("container", items=(self.value(first),))
        if name in ("iter", "next") and first:
            return self.item(self.value(first)) if name == "next" else self.value(first)
        if name.startswith("self.") and name.count(".") == 1:
            return Build("maker", last, tuple(map(self.value, node.args)))
        if last == "skip_init" or self.env.get(name) == _UNKNOWN:
            # an unknown function is assumed to instantiate the class it gets: `make(Layer, config)`
            built = self.value(first) if first else _UNKNOWN
            return built if built.kind == "class" and not built.items else _UNKNOWN
        if name in self.env:
            return self.env[name]
        if name:
            given = map(self.value, node.args) if name.islower() else ()
            return Build("class", name, tuple(given), span_of(node.func))
        return self.value(node.func)

    def _unpacked(self, arguments: list[ast.expr]) -> Iterator[Build]:
        """Yield the items of a container's arguments: a single list argument is the list of items."""
        for argument in arguments[:_MOST_ITEMS]:
            built = self.value(argument.value if isinstance(argument, ast.Starred) else argument)
            if built.kind == "container":
                yield from built.items
            elif built.kind == "unknown" or (
                isinstance(argument, ast.Call) and not last_name(argument.func).islower()
            ):
                yield built  # `nn.Sequential(Block(), Block())` holds its arguments themselves
            else:
                yield Build("spread", items=(built,))
