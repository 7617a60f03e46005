"""A transformers models folder as the replay's judge reads it: files, classes, signatures, and every call of a block.

Written apart from the codemods on purpose, so that one cannot hide the other's errors. An inline branch is one call
site: its `else` branch says which arguments are passed.
"""

from __future__ import annotations

import ast
import copy
import gc
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

LAYER = "GradientCheckpointingLayer"
SELF = "self"
PACKAGE = "transformers.models."


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters without `self`: the positional ones in order, and their defaults."""

    positional: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, function: ast.FunctionDef, *, bound: bool = True) -> Signature:
        """Read a function's parameters; `bound` drops the first one, `self`."""
        ordered = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        defaults = [ast.unparse(default) for default in function.args.defaults]
        with_default = ordered[len(ordered) - len(defaults) :]
        return cls(tuple(ordered[1:] if bound else ordered), tuple(zip(with_default, defaults, strict=True)))


@dataclass(eq=False)
class Class:
    """One class statement. `guard` distinguishes definitions of one name: the branch around it, or ""."""

    file: File
    node: ast.ClassDef
    guard: str

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def bases(self) -> tuple[str, ...]:
        """The bases as written, without keywords such as `metaclass`."""
        return tuple(ast.unparse(base) for base in self.node.bases)

    @cached_property
    def methods(self) -> dict[str, ast.FunctionDef]:
        return {s.name: s for s in self.node.body if isinstance(s, ast.FunctionDef)}

    @cached_property
    def parents(self) -> dict[str, dict[ast.AST, ast.AST]]:
        """By method: every node below it, breadth first, with the node that holds it."""
        return {name: _parents(method) for name, method in self.methods.items()}

    @cached_property
    def puts(self) -> dict[str, dict[str, list[ast.expr]]]:
        """By method, by dotted name: every expression assigned, added or appended to that name."""
        return {name: _puts(nodes) for name, nodes in self.parents.items()}

    @cached_property
    def ancestors(self) -> tuple[Class, ...]:
        """The class itself, then every base found in the tree, depth first."""
        found: list[Class] = []
        waiting = [self]
        while waiting:
            owner = waiting.pop()
            if owner not in found:
                found.append(owner)
                waiting += [each for base in owner.bases[::-1] for each in owner.file.classes_called(base)[::-1]]
        return tuple(found)

    @cached_property
    def is_layer(self) -> bool:
        """Whether a GradientCheckpointingLayer stands somewhere in the base chain."""
        return any(self_or_base.is_layer_itself for self_or_base in self.ancestors)

    @cached_property
    def is_layer_itself(self) -> bool:
        """Whether one of the bases written here is the layer, or an alias of it."""
        named = (self.file.imports.get(base, ("", base))[1] for base in self.bases)
        return any(base.rsplit(".", 1)[-1] == LAYER for base in named)

    @cached_property
    def signature(self) -> Signature | None:
        """The forward's signature, inherited where the class has none; None where the tree has none."""
        for owner in self.ancestors:
            if "forward" in owner.methods:
                return Signature.of(owner.methods["forward"])
        return None


@dataclass(eq=False)
class File:
    """One parsed file. `path` is relative to the models folder, with forward slashes."""

    tree: Tree
    path: str
    module: ast.Module
    classes: dict[str, list[Class]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    aliases: dict[str, ast.expr] = field(default_factory=dict)
    guarded_imports: list[ClassFact] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._read(self.module.body, "")

    def _read(self, body: list[ast.stmt], guard: str) -> None:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                self.classes.setdefault(statement.name, []).append(Class(self, statement, guard))
            elif isinstance(statement, ast.ImportFrom) and statement.module:
                target = self._resolve(statement.level, statement.module)
                for alias in statement.names:
                    self.imports[alias.asname or alias.name] = (target, alias.name)
                    if guard:
                        name, line = alias.asname or alias.name, statement.lineno
                        made = ClassFact(self.path, name, guard, line, (alias.name,), imported=True)
                        self.guarded_imports.append(made)
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.aliases[statement.targets[0].id] = statement.value
            elif isinstance(statement, ast.If):
                test = ast.unparse(statement.test)
                self._read(statement.body, f"{guard}if {test}: ")
                self._read(statement.orelse, f"{guard}if not ({test}): ")
            elif isinstance(statement, ast.Try):
                for branch in (statement.body, statement.orelse, *(h.body for h in statement.handlers)):
                    self._read(branch, guard)

    def _resolve(self, level: int, module: str) -> str:
        """Return the path, relative to the models folder, of the file that an import names; "" for one outside."""
        if not level:
            return module.removeprefix(PACKAGE).replace(".", "/") + ".py" if module.startswith(PACKAGE) else ""
        folder = self.path.split("/")[:-1]
        up = level - 1
        if up > len(folder):
            return ""
        return "/".join([*folder[: len(folder) - up], *module.split(".")]) + ".py"

    def classes_called(self, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> list[Class]:
        """Return every definition that `name` may mean in this file, through imports and module level aliases."""
        if (self.path, name) in seen:
            return []
        seen |= {(self.path, name)}
        if name in self.classes:
            return self.classes[name]
        if name in self.imports:
            path, original = self.imports[name]
            other = self.tree.file(path)
            return other.classes_called(original, seen) if other else []
        if name in self.aliases:
            return [c for n in names_in(self.aliases[name]) for c in self.classes_called(n, seen)]
        return []


class Tree:
    """The PyTorch modeling and modular files below a models folder, parsed when first asked for.

    Raises FileNotFoundError where there are none; `file` raises SyntaxError where one does not parse.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[str, File | None] = {}
        named = [p for pattern in ("modeling_*.py", "modular_*.py") for p in root.rglob(pattern)]
        self.paths = sorted(p.relative_to(root).as_posix() for p in named if not p.name.startswith(OTHER_FRAMEWORKS))
        if not self.paths:
            raise FileNotFoundError(f"no modeling_*.py or modular_*.py below {root}")

    def file(self, path: str) -> File | None:
        """Parse one file by its path relative to the folder; None if there is no such file."""
        if path not in self._files:
            place = self.root / path
            self._files[path] = None
            if place.is_file():
                text = place.read_text(encoding="utf-8")
                self._files[path] = File(self, path, ast.parse(text, filename=path))
        return self._files[path]


ADDING = ("append", "extend", "insert", "add_module")
OTHER_FRAMEWORKS = ("modeling_tf_", "modeling_flax_")


def _parents(method: ast.FunctionDef) -> dict[ast.AST, ast.AST]:
    parents: dict[ast.AST, ast.AST] = {}
    waiting: list[ast.AST] = [method]
    for node in waiting:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.expr_context, ast.operator, ast.cmpop)):
                parents[child] = node
                waiting.append(child)
    return parents


def _puts(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                values.setdefault(dotted(target), []).append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDING:
            values.setdefault(dotted(node.func.value), []).extend(node.args)
    return values


def names_in(node: ast.AST) -> list[str]:
    """Return the plain names read in `node`, in order, without repeats."""
    return list(dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name)))


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text, with any subscripts left out; "" for anything that is not such a chain."""
    parts: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


SWITCH = "gradient_checkpointing"


def plain_body(function: ast.FunctionDef, calls: Container[tuple[int, int]]) -> str:
    """Return the body as if no checkpointing were asked for, arguments left out of the calls at these places.

    `calls` are (line, column). A test on the flag gives way to its other branch; one that guards no
    checkpoint call, such as the one that turns `use_cache` off, is left out: it may stay or go.
    """
    bare = _Bare(calls).visit(copy.deepcopy(function))
    return "\n".join(ast.unparse(statement) for statement in bare.body)


class _Bare(ast.NodeTransformer):
    def __init__(self, calls: Container[tuple[int, int]]) -> None:
        self.calls = calls

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        here, there = (
            any(isinstance(n, ast.Call) and is_checkpoint(n) for statement in body for n in ast.walk(statement))
            for body in (node.body, node.orelse)
        )
        test = ast.unparse(node.test)
        if SWITCH not in test and not ("checkpoint" in test and here != there):
            self.generic_visit(node)
            return node
        kept = node.body if there and not here else node.orelse
        holder = self.generic_visit(ast.Module(body=kept, type_ignores=[]))
        return holder.body if isinstance(holder, ast.Module) else []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if (node.lineno, node.col_offset) in self.calls:
            node.args, node.keywords = [], []
        return node


FORWARDS = ("__call__", "forward")
ITERATES_ITS_FIRST = ("reversed", "list", "tuple", "iter", "sorted")
ITERATES_ITS_OBJECT = ("values", "children", "modules")
DEEPEST = 8

Place = tuple[str, str, str, str]
"""A method: file, class, the guard around the class, method."""

Wanted = frozenset[tuple[Place, str]]
"""Methods and callees whose checkpoint calls BEFORE has."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call's arguments, expressions as normalized text.

    `positional` are (parameter, expression) in order, `#2` standing for a parameter that no signature
    tells. `keywords` are in the order written.
    """

    positional: tuple[tuple[str, str], ...]
    keywords: tuple[tuple[str, str], ...] = ()
    stars: tuple[str, ...] = ()
    double_stars: tuple[str, ...] = ()

    @property
    def bound(self) -> dict[str, str]:
        """Every argument with a name or a place, by parameter."""
        return dict((*self.positional, *self.keywords))

    def __str__(self) -> str:
        parts = [value if name in (value, "") else f"{name}: {value}" for name, value in self.positional]
        parts += [f"*{star}" for star in self.stars]
        parts += [f"{name}={value}" for name, value in self.keywords]
        parts += [f"**{value}" for value in self.double_stars]
        return f"({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Site:
    """One call site.

    `target` is the statement with the call cut out, `blocks` the classes that may be called and `layers`
    those of them that checkpoint themselves, `inline` the line of the checkpoint call or 0, `switched`
    whether the model's checkpointing flag guards that call, `through` whether what is called is a local
    function that calls the block, `body` the method's text apart from branches and
    arguments (only where BEFORE has a branch in it).
    """

    place: Place
    callee: str
    line: int
    target: str
    arguments: Arguments
    blocks: tuple[str, ...]
    layers: tuple[str, ...]
    signature: Signature | None
    inline: int = 0
    switched: bool = False
    through: bool = False
    body: str = ""

    @property
    def path(self) -> str:
        return self.place[0]

    @property
    def class_name(self) -> str:
        return self.place[1]

    @property
    def text(self) -> str:
        """The call as a person would compare it."""
        return self.target.replace("<call>", f"{self.callee}{self.arguments}")


@dataclass(frozen=True, slots=True)
class ClassFact:
    """One class statement. `is_layer_itself` where a base written here is the layer, `is_layer` anywhere above.

    `imported`: an import inside a guard, which may be turned into a class; its base is what is imported.
    """

    path: str
    name: str
    guard: str
    line: int
    bases: tuple[str, ...]
    is_layer: bool = False
    is_layer_itself: bool = False
    imported: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.path, self.name, self.guard)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the grading needs of one models folder."""

    sites: tuple[Site, ...]
    classes: tuple[ClassFact, ...]


def read(root: Path, wanted: Wanted = frozenset()) -> Snapshot:
    """Read a models folder.

    A call of something that is no block of the tree counts only where (method, callee) is in `wanted`.
    Raises FileNotFoundError where nothing is there to read, SyntaxError where a file does not parse.
    """
    gc.disable()  # millions of syntax nodes and no garbage among them: the collector would triple the time
    try:
        tree = Tree(root)
        sites: list[Site] = []
        classes: list[ClassFact] = []
        for file in filter(None, map(tree.file, tree.paths)):
            classes += file.guarded_imports
            for each in chain.from_iterable(file.classes.values()):
                layer = {"is_layer": each.is_layer, "is_layer_itself": each.is_layer_itself}
                classes.append(ClassFact(file.path, each.name, each.guard, each.node.lineno, each.bases, **layer))
                for method in each.methods.values():
                    sites += _Method(each, method, wanted).sites()
        return Snapshot(tuple(sites), tuple(classes))
    finally:
        gc.enable()


def bind(call: ast.Call, signature: Signature | None) -> Arguments:
    """Bind a call's positionals to the signature's parameters."""
    positional: list[tuple[str, str]] = []
    stars: list[str] = []
    names = signature.positional if signature else ()
    for place, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            stars.append(ast.unparse(argument.value))
        elif stars or place >= len(names):
            positional.append((f"#{place}", ast.unparse(argument)))
        else:
            positional.append((names[place], ast.unparse(argument)))
    keywords = tuple((k.arg, ast.unparse(k.value)) for k in call.keywords if k.arg)
    spread = tuple(ast.unparse(k.value) for k in call.keywords if not k.arg)
    return Arguments(tuple(positional), keywords, tuple(stars), spread)


def is_checkpoint(call: ast.Call) -> bool:
    """Tell whether a call is one of `self._gradient_checkpointing_func` or torch's `checkpoint`."""
    name = dotted(call.func)
    if not call.args:
        return False
    return name.endswith(("._gradient_checkpointing_func", "checkpoint.checkpoint")) or name == "checkpoint"


def callee_of(function: ast.expr) -> ast.expr:
    """Return the module behind what is called: `x` for `x.__call__`, `partial(x.forward, ...)`, `closure(x)`."""
    if isinstance(function, ast.Attribute) and function.attr in FORWARDS:
        return callee_of(function.value)
    if isinstance(function, ast.Call) and function.args:
        return callee_of(function.args[0])
    return function


@dataclass(frozen=True, slots=True)
class _Branch:
    """The statements beside a checkpoint call, those of the other branch, and whether the flag chooses."""

    own: list[ast.stmt]
    other: list[ast.stmt]
    switched: bool


class _Method:
    """One method's calls. Names are followed from loops and assignments to the attributes they come from."""

    def __init__(self, owner: Class, function: ast.FunctionDef, wanted: Wanted) -> None:
        self.owner = owner
        self.function = function
        self.wanted = wanted
        self.place = (owner.file.path, owner.name, owner.guard, function.name)
        self.parents = owner.parents[function.name]
        self.nodes = list(self.parents)
        self.closures = {n.name: n for n in self.nodes if isinstance(n, ast.FunctionDef)}
        self.bindings: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, (ast.For, ast.comprehension)):
                self._bind(node.target, node.iter)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, ast.Call) and (closure := self.closures.get(dotted(node.func))):
                self._bind_parameters(closure, node)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        """Note where the names of a loop's or an assignment's target come from."""
        if isinstance(target, ast.Name):
            self.bindings.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple):
            sources = [value] * len(target.elts)
            name = dotted(value.func) if isinstance(value, ast.Call) else ""
            if isinstance(value, ast.Call) and name == "enumerate" and len(sources) == 2:
                sources[1] = value.args[0]
            elif isinstance(value, ast.Call) and name == "zip" and len(sources) == len(value.args):
                sources = value.args
            elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "items":
                sources[-1] = value.func.value
            for part, source in zip(target.elts, sources, strict=True):
                self._bind(part, source)

    def _bind_parameters(self, closure: ast.FunctionDef, call: ast.Call) -> None:
        """Note what a local function is handed."""
        for parameter, value in zip(closure.args.args, call.args, strict=False):
            self.bindings.setdefault(parameter.arg, []).append(value)
        for keyword in call.keywords:
            if keyword.arg:
                self.bindings.setdefault(keyword.arg, []).append(keyword.value)

    def sites(self) -> list[Site]:
        """Return the method's sites, in the order of their lines."""
        calls = [n for n in self.nodes if isinstance(n, ast.Call)]
        calls.sort(key=lambda call: (call.lineno, call.col_offset))
        branches = {call: self._branch(call) for call in calls if is_checkpoint(call)}
        hidden = {n for call in branches for n in ast.walk(call)}
        hidden |= {n for b in branches.values() if b for s in b.own for n in ast.walk(s)}
        direct = [call for call in calls if call not in hidden]
        sites: dict[ast.Call, Site] = {}
        for checkpoint, branch in branches.items():
            twin = self._twin(checkpoint, branch, [c for c in direct if c not in sites])
            site = self._site(twin or checkpoint, checkpoint, switched=branch is not None and branch.switched)
            if site:
                sites[twin or checkpoint] = site
        for call in direct:
            if call not in sites and (site := self._site(call, None)):
                sites[call] = site
        if branches or any(place == self.place for place, _ in self.wanted):
            body = plain_body(self.function, {(c.lineno, c.col_offset) for c in sites})
            sites = {call: replace(site, body=body) for call, site in sites.items()}
        return sorted(sites.values(), key=lambda site: site.line)

    def _branch(self, call: ast.Call) -> _Branch | None:
        """Return the innermost branch of a test on checkpointing that holds the call; None where there is none."""
        node: ast.AST = call
        while node in self.parents:
            child, node = node, self.parents[node]
            if isinstance(node, ast.If) and "checkpoint" in (test := ast.unparse(node.test)):
                inside = child in node.body
                return _Branch(*((node.body, node.orelse) if inside else (node.orelse, node.body)), SWITCH in test)
        return None

    def _twin(self, checkpoint: ast.Call, branch: _Branch | None, direct: list[ast.Call]) -> ast.Call | None:
        """Return the plain call that the other branch makes of the same module."""
        if branch is None:
            return None
        name = ast.unparse(callee_of(checkpoint.args[0]))
        inside = {n for s in branch.other for n in ast.walk(s)}
        return next((c for c in direct if c in inside and ast.unparse(callee_of(c.func)) == name), None)

    def _site(self, call: ast.Call, checkpoint: ast.Call | None, *, switched: bool = False) -> Site | None:
        callee = callee_of(checkpoint.args[0] if checkpoint else call.func)
        if not isinstance(callee, (ast.Name, ast.Attribute, ast.Subscript)):
            return None
        closure = self.closures.get(callee.id) if isinstance(callee, ast.Name) else None
        blocks = [block for block in self._classes(callee, 0) if block.signature]
        if closure:
            blocks = [block for a in call.args[:2] for block in self._classes(a, 0) if block.signature]
        name = ast.unparse(callee)
        if not blocks and not checkpoint and (self.place, name) not in self.wanted:
            return None
        signature = blocks[0].signature if blocks else None
        if closure:
            signature = Signature.of(closure, bound=False)
        plain = ast.Call(call.func, call.args[1:], call.keywords) if call is checkpoint else call
        return Site(
            place=self.place,
            callee=name,
            line=call.lineno,
            target=self._target(call),
            arguments=bind(plain, signature),
            blocks=tuple(dict.fromkeys(block.name for block in blocks)),
            layers=tuple(dict.fromkeys(block.name for block in blocks if block.is_layer)),
            signature=signature,
            inline=checkpoint.lineno if checkpoint else 0,
            switched=switched,
            through=closure is not None,
        )

    def _target(self, call: ast.Call) -> str:
        """Return what the statement does with the result: `layer_outputs = <call>`, `hidden_states = <call>[0]`."""
        node: ast.AST = call
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        if isinstance(node, (ast.For, ast.If, ast.While, ast.With, ast.FunctionDef)):
            return f"{type(node).__name__.lower()} <call>"
        return ast.unparse(node).replace(ast.unparse(call), "<call>")

    def _classes(self, module: ast.expr, depth: int) -> list[Class]:
        """Return the classes that an expression may be an instance, or a container, of."""
        if depth > DEEPEST:
            return []
        sources: Iterable[ast.expr] = ()
        match module:
            case ast.Attribute(value=ast.Name(id="self")):
                return attribute_classes(self.owner, module.attr)
            case ast.Attribute():
                owners = self._classes(module.value, depth + 1)
                return _unique(c for owner in owners for c in attribute_classes(owner, module.attr))
            case ast.Name():
                sources = self.bindings.get(module.id, ())
            case ast.Subscript():
                sources = [module.value]
            case ast.List() | ast.Tuple():
                sources = module.elts
            case ast.Call(func=ast.Name() as function) if function.id in ITERATES_ITS_FIRST:
                sources = module.args[:1]
            case ast.Call(func=ast.Attribute() as function) if function.attr in ITERATES_ITS_OBJECT:
                sources = [function.value]
        return _unique(c for source in sources for c in self._classes(source, depth + 1))


def attribute_classes(owner: Class, attribute: str) -> list[Class]:
    """List the classes that the constructors of `owner` put into `self.<attribute>`, nearest definition first."""
    for ancestor in owner.ancestors:
        classes: list[Class] = []
        for method, puts in ancestor.puts.items():
            for value in puts.get(f"{SELF}.{attribute}", ()):
                classes += _classes_built(ancestor, method, value, set())
        if classes:
            return _unique(classes)
    return []


def _classes_built(owner: Class, method: str, value: ast.expr, seen: set[str]) -> list[Class]:
    """Classes that `value` makes objects of, through local variables and the class's own helper methods.

    A class that is only handed to a constructor (`downsample=PatchMerging`) is not one of them.
    """
    nodes = list(ast.walk(value))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    made = {name for call in calls for name in names_in(call.func)} if calls else set(names_in(value))
    classes: list[Class] = []
    for name in names_in(value):
        if name in made:
            classes += owner.file.classes_called(name)
        if name not in seen:
            seen.add(name)
            for more in owner.puts[method].get(name, ()):
                classes += _classes_built(owner, method, more, seen)
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == SELF:
            helper = owner.methods.get(node.attr)
            if helper and node.attr not in seen:
                seen.add(node.attr)
                classes += [c for n in names_in(helper) for c in owner.file.classes_called(n)]
    return classes


def _unique(classes: Iterable[Class]) -> list[Class]:
    return list(dict.fromkeys(classes))
