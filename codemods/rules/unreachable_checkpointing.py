"""A model says that it supports gradient checkpointing, and nothing in it can checkpoint.

## What it does
Reports model classes with `supports_gradient_checkpointing = True` that hold no `GradientCheckpointingLayer`, no block
that CKPT001 would repair, no inline branch and no model of transformers. Models without attention or recurrence
(vocoders, quantizers, heads) are reported as information only. If a model calls, or loops over, an argument,
or what an unknown function returned, nothing is decided.

## Why is this bad?
`gradient_checkpointing_enable()` succeeds, `is_gradient_checkpointing` is True, and memory does not fall.

## Example
```python
class FooModel(FooPreTrainedModel):            # supports_gradient_checkpointing = True
    def __init__(self, config):
        self.convolution = nn.Conv2d(3, 64, 7)  # and no block anywhere
```

## Fix safety
Reported only: either the flag is wrong, or the blocks are not recognised as blocks.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.file_facts import ELEMENT
from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.tree.classes import TORCH_PREFIXES, Answer, ClassRef, is_finished_model
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches import family_facts

RULE = Declaration(code="CKPT009", repair=RepairKind.NONE)
_USES = (ast.Call, ast.For, ast.comprehension)
_BUILTINS = frozenset(dir(builtins)) - {"eval", "getattr", "globals"}
_BUILT_ELSEWHERE = ("Auto", "load_backbone", "Backbone", "timm")


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for the innermost model classes without anything to checkpoint."""
    tree = context.tree
    models: list[ClassRef] = []  # those that claim checkpointing for their parts
    for ref in tree.names.checked_classes():
        claims = tree.bases.claims(ref) and any(method.name == "__init__" for method in ref.cls.methods)
        # some blocks derive from the model's own base class
        if claims and ref.cls.attributes and not (tree.blocks.is_block(ref) or tree.blocks.checkpointed_by_hand(ref)):
            models.append(ref)
    bare = {ref: answer for ref in models if (answer := _reaches(tree, ref)) is not Answer.YES}
    for ref, answer in bare.items():
        if any(part in bare for part in tree.containers.parts(ref)):
            continue
        if answer is Answer.NO:
            message = f"{ref.name} claims to support gradient checkpointing, but holds nothing that checkpoints"
            applicability = Applicability.UNSAFE if tree.blocks.mixes(ref) else Applicability.INFO
        else:
            message = f"the parts of {ref.name} are chosen at run time: whether it checkpoints cannot be determined"
            applicability = Applicability.UNKNOWN
        yield context.class_finding(RULE, ref, message, applicability)


def _reaches(tree: SourceTree, ref: ClassRef) -> Answer:
    seen, waiting, is_doubtful = {ref}, [ref], False
    while waiting:
        holder = waiting.pop()
        if tree.blocks.imports_wrapper(holder) or any(ancestor.cls.inlines for ancestor in tree.bases.lineage(holder)):
            return Answer.YES
        if any(map(is_finished_model, (*tree.bases.externals(holder), *tree.containers.all_parts(holder)))):
            return Answer.YES
        is_doubtful = is_doubtful or holder in tree.blocks.perhaps_by_helper
        for part in tree.containers.all_parts(holder):
            # chosen at run time, defined elsewhere, or derived from a class there
            is_doubtful = is_doubtful or any(word in part.name for word in _BUILT_ELSEWHERE)
            if not isinstance(part, ClassRef):
                is_doubtful = is_doubtful or bool(part.module and not part.is_plain)
                continue
            is_doubtful = is_doubtful or tree.bases.is_layer(part) is Answer.UNKNOWN
            if part not in seen:
                plain_on_purpose = part.name in family_facts(part.path).not_blocks
                if plain_on_purpose or tree.blocks.is_block(part) or part in tree.blocks.checkpointed_by_helper:
                    return Answer.YES
                seen.add(part)
                waiting.append(part)
    return Answer.UNKNOWN if is_doubtful or any(_calls_unknown(tree, holder) for holder in seen) else Answer.NO


def _calls_unknown(tree: SourceTree, ref: ClassRef) -> bool:
    """Tell whether a class calls, or loops over, something that was passed in and that nothing identifies."""
    names = set[str]()
    for base in tree.bases.lineage(ref):
        nodes = walk(tree.class_node(base))
        assignments = [node for node in nodes if isinstance(node, ast.Assign) and not _is_clear(node.value)]
        targets = [target for node in assignments for target in node.targets]
        parts = (part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each]))
        unclear = set(map(dotted, parts))
        used = [node.func if isinstance(node, ast.Call) else node.iter for node in nodes if isinstance(node, _USES)]
        names |= unclear.intersection(map(dotted, used))
    attributes = (name.removeprefix("self.") for name in names if name.startswith("self."))
    for name in attributes:
        inside = (tree.containers.reached(ref, (name, *[ELEMENT] * depth)) for depth in range(3))
        held = (target for reached in inside for target in reached)
        if not any(isinstance(each, ClassRef) or each.module or not each.name.islower() for each in held):
            return True
    return False


def _is_clear(value: ast.expr) -> bool:
    """Tell whether a value is not a module, or is made by a class, by torch or by a builtin function."""
    match value:
        case ast.BoolOp(values=values):
            return all(map(_is_clear, values))
        case ast.Call(func=function, args=args):
            name = dotted(function)
            last = name.rpartition(".")[2]
            if last in ("ModuleList", "ModuleDict", "Sequential"):
                return all(map(_is_clear, args))
            return last[:1].isupper() or name.startswith(TORCH_PREFIXES) or name in _BUILTINS
    return not isinstance(value, ast.Name | ast.Attribute | ast.Subscript)
