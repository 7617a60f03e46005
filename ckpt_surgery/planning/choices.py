"""A plan's choices for a model: as data, as Python code, and applied, with one `undo` for all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from itertools import groupby
from typing import Any, Literal

import yaml
from torch import nn

from ckpt_surgery.long_sequences.calls import AppliedPlan, apply_calls
from ckpt_surgery.text import listed, plural

_PLACE = re.compile(r"(.*?)\.(\d+)\.([A-Za-z_][\w.]*)")
"""The name of a module inside a block: the stack, the number of the block, and the name within the block."""


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A plan's choices: blocks checkpointed, each keeping its own results, the loss fused, MLPs tiled.

    Attributes:
        stacks: the names of all blocks, by stack.
        checkpointed: the checkpointed blocks by name, each with the operators whose results it keeps, as in `save` of
            `wrap_blocks`.
        offload: whether the inputs of checkpointed blocks go to host memory.
        save_offload: whether what they keep because of `save` goes there too.
        fused_loss: whether the loss is computed without logits.
        tiled: the full names of the MLPs that run on `shard_size` tokens at a time.
        shard_size: the tokens of a shard of a tiled MLP.
    """

    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    checkpointed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    offload: bool = False
    save_offload: bool = False
    fused_loss: bool = False
    tiled: tuple[str, ...] = ()
    shard_size: int = 0

    @property
    def saved(self) -> dict[tuple[str, ...], list[str]]:
        """The blocks that keep results of operators, by the names of what they keep."""
        saved: dict[tuple[str, ...], list[str]] = {}
        for block, names in self.checkpointed.items():
            if names:
                saved.setdefault(names, []).append(block)
        return saved

    @property
    def beside_blocks(self) -> Hashable:
        """A key shared by choices that differ only in what individual blocks do."""
        return self.offload, self.save_offload, self.fused_loss, self.tiled, self.shard_size

    @property
    def key(self) -> Hashable:
        """A key that distinguishes this choice from others for the same model."""
        return tuple(sorted(self.checkpointed.items())), self.beside_blocks

    @property
    def is_needed(self) -> bool:
        """Whether the choice changes anything."""
        return bool(self.checkpointed) or self.fused_loss or bool(self.tiled)

    @property
    def code(self) -> str:
        """The Python code that applies the choice: the imports, and a call on each line."""
        calls = self.arguments()
        beside = ", ".join(sorted(function for function in calls if function != "wrap_blocks"))
        lines = ["from ckpt_surgery import wrap_blocks"] if self.checkpointed else []
        lines += [f"from ckpt_surgery.distributed import {beside}"] if beside else []
        lines += [""] if calls else []
        for function, named in calls.items():
            given = [_listed(named.pop("modules")) if "modules" in named else "model"]
            given += [f"{name}={json.dumps(v) if isinstance(v, str) else repr(v)}" for name, v in named.items()]
            lines.append(f"{function}({', '.join(given)})")
        return "\n".join(lines)

    def arguments(self) -> dict[str, dict[str, Any]]:
        """Return the calls that apply the choice, by function name: their keyword arguments, without the model."""
        calls: dict[str, dict[str, Any]] = {}
        if self.tiled:
            calls["tile_mlp"] = {"modules": list(self.tiled), "shard_size": self.shard_size}
        if self.fused_loss:
            calls["fuse_loss"] = {}
        if self.checkpointed:
            calls["wrap_blocks"] = {
                **self._wanted_blocks(),
                **({"offload": "cpu"} if self.offload else {}),
                **self._saved_results(),
                **({"save_offload": True} if self.save_offload else {}),
            }
        return calls

    def _wanted_blocks(self) -> dict[str, Any]:
        """Return the arguments that select the blocks: none for all, the number of first ones, or name patterns."""
        wanted = {stack: [name for name in names if name in self.checkpointed] for stack, names in self.stacks.items()}
        if all(len(wanted[stack]) == len(names) for stack, names in self.stacks.items()):
            return {}
        if all(wanted[stack] == list(names[: len(wanted[stack])]) for stack, names in self.stacks.items()):
            return {"first": {escape(stack): len(names) for stack, names in wanted.items()}}
        patterns = [self._patterns(stack, wanted[stack], names) for stack, names in self.stacks.items()]
        return {"stacks": [pattern for some in patterns for pattern in some]}

    def _saved_results(self) -> dict[str, Any]:
        """Return the argument for the results that blocks keep: none, names for all blocks, or names by pattern."""
        kinds = list(dict.fromkeys(self.checkpointed.values()))
        if len(kinds) == 1:
            return {"save": list(kinds[0])} if kinds[0] else {}
        saved: dict[str, list[str]] = {}
        for stack, blocks in self.stacks.items():
            wanted = [block for block in blocks if block in self.checkpointed]
            for names in filter(None, kinds):
                some = [block for block in wanted if self.checkpointed[block] == names]
                saved |= {pattern: list(names) for pattern in self._patterns(stack, some, wanted)}
        return {"save": saved}

    def _patterns(self, stack: str, some: Sequence[str], every: Sequence[str]) -> list[str]:
        """List patterns that match some blocks of a stack, none of its others, and nothing in other stacks."""
        numbers = [name.removeprefix(f"{stack}.") for name in some]
        has_no_inner_stack = not any(each.startswith(f"{stack}.") for each in self.stacks)
        if some and list(some) == list(every) and stack and has_no_inner_stack:
            return [escape(stack)]
        if not stack or not all(number.isdecimal() for number in numbers):
            return [escape(name) for name in some]
        patterns = []
        for start, group in groupby(numbers, key=lambda number: number[:-1]):
            digits = "".join(number[-1] for number in group)
            if len(digits) > 1:
                digits = f"[{digits[0]}-{digits[-1]}]" if digits in "0123456789" else f"[{digits}]"
            patterns.append(f"{escape(stack)}.{start}{digits}")
        return patterns

    @property
    def name(self) -> str:
        """The choice in a few words."""
        return ", ".join([self.blocks_name, *self.beside])

    @property
    def blocks_name(self) -> str:
        """How many blocks are checkpointed, and how, in a few words."""
        counted = f"{len(self.checkpointed)} of {plural(sum(map(len, self.stacks.values())), 'block')}"
        saved = [f"{listed(names)} in {len(blocks)}" for names, blocks in self.saved.items()]
        if len(set(self.checkpointed.values())) == 1:
            saved = [f"{listed(names)} saved" for names in self.saved]
        elif saved:
            saved[0] = f"saved: {saved[0]}"
        moved = ["all offloaded" if self.save_offload else "offloaded"] if self.offload else []
        return ", ".join([counted, *moved, *saved])

    @property
    def beside(self) -> list[str]:
        """The changes beside checkpointing, in a few words each."""
        return [*(["fused loss"] if self.fused_loss else []), *(["tiled MLPs"] if self.tiled else [])]

    def to_yaml(self, model: str, memory: int, device: str, **predicted: float) -> str:
        """Write the file of a plan: the calls with their arguments, and what is predicted in bytes and seconds."""
        facts: dict[str, Any] = {"model": model, "memory": memory, "device": device}
        return as_yaml({**facts, "calls": self.arguments(), "predicted": predicted})

    def apply(self, model: nn.Module, *, self_check: Literal["first", "never"] = "first") -> AppliedPlan:
        """Apply the choice to a model. Raises SurgeryError as its calls do, after undoing those already made."""
        return apply_calls(model, self.arguments(), self_check=self_check)


def _listed(names: Sequence[str]) -> str:
    """Write a list of modules as Python code: by stack if each element has the same module, else by name."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = _PLACE.fullmatch(name)
        if match is None or re.search(r"\.\d+(\.|$)", f".{match[1]}.{match[3]}"):
            return f"[model.get_submodule(name) for name in {list(names)!r}]"
        groups.setdefault((match[1], match[3]), []).append(int(match[2]))
    lists = []
    for (stack, inside), numbers in groups.items():
        which = "" if numbers == list(range(len(numbers))) else f" for i in {tuple(numbers)!r}"
        lists.append(f"model.{stack}[i].{inside}{which}" if which else f"block.{inside} for block in model.{stack}")
    return " + ".join(f"[{each}]" for each in lists)


def as_yaml(document: Mapping[str, Any], indent: str = "") -> str:
    """Write a document of strings, numbers, lists and mappings as YAML, with values as in JSON.

    Floats get a decimal point: without one, readers of YAML 1.1 take 1e-07 for a string.
    """
    lines = []
    for name, value in document.items():
        is_plain = name.isidentifier() and yaml.safe_load(name) == name
        key = f"{indent}{name if is_plain else json.dumps(name)}:"
        if isinstance(value, Mapping) and value:
            lines.append(f"{key}\n{as_yaml(value, f'{indent}  ')}")
            continue
        written = repr(value) if isinstance(value, float) else json.dumps(value)
        if isinstance(value, float) and "." not in written:
            written = written.replace("e", ".0e")
        lines.append(f"{key} {written}\n")
    return "".join(lines)
