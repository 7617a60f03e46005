"""Classes as the tree refers to them: those in its files, those outside, and three-valued answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ckpt_surgery.codemods.facts.file_facts import Class

MODULES = ("nn.Module", "torch.nn.Module", "Module")
"""How files write the base class of torch's modules."""
TORCH_PREFIXES = ("nn.", "torch.")


class Answer(Enum):
    """Yes, no, or not decidable from the files at hand."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class ClassRef:
    """A class of the tree, by identity: two definitions of one name under `if`/`else` are two."""

    path: str
    cls: Class

    @property
    def name(self) -> str:
        return self.cls.name

    def __repr__(self) -> str:
        return f"ClassRef({self.name}, {self.path}:{self.cls.span.line})"


class External(NamedTuple):
    """A class that the tree does not hold: its name as this file writes it, and where it comes from."""

    name: str
    module: str


Target = ClassRef | External


def is_plain_external(external: External) -> bool:
    """Whether an external class is surely no GradientCheckpointingLayer: torch's own, or of transformers' core."""
    name, module = external.name, external.module
    if name in {"object", "ABC", "abc.ABC", "Module", "Protocol", "Generic"} or name.startswith(TORCH_PREFIXES):
        return True
    if module.startswith(("torch", "abc", "typing", "enum", "dataclasses", "collections")):
        return True
    core = module.lstrip(".").removeprefix("transformers.")
    return (module.startswith(("...", "transformers"))) and not core.startswith("models")


def renames(old: str, new: str) -> Iterator[tuple[str, str]]:
    """The model prefixes that two class names differ in: LlamaModel and FooModel give Llama, Foo."""
    size = 0
    while size < min(len(old), len(new)) and old[-1 - size] == new[-1 - size]:
        size += 1
    for cut in range(size, 0, -1):
        if old[-cut:][0].isupper():
            yield old[:-cut], new[:-cut]
