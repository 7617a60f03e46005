"""References to classes, of the tree's files and of others, and the three-valued answer to questions about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import NamedTuple

from ckpt_surgery.codemods.facts.file_facts import Class

MODULES = ("nn.Module", "torch.nn.Module", "Module")
"""How files write the base class of torch's modules."""
BASE_MODEL = "PreTrainedModel"
_MODEL = re.compile(r"Model$|For[A-Z]\w+$")
TORCH_PREFIXES = ("nn.", "torch.")
_PLAIN_NAMES = frozenset({"object", "ABC", "abc.ABC", "Module", "Protocol", "Generic"})
_PLAIN_MODULES = ("torch", "abc", "typing", "enum", "dataclasses", "collections")
_LAYER = re.compile(r"\b[A-Z]\w*(Layer|Block)$")
_PART = re.compile(r"(Moe|MoE|MLP|Mlp|Attention|Conv\w*|Resnet|Norm|Embedding|Head)(Layer|Block)$")
_STACK = re.compile(r"\b[A-Z]\w*(?<!PreTrained)(Model|Encoder|Decoder|Stack)$")


class Answer(Enum):
    """Yes, no, or not decidable from the files at hand."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class ClassRef:
    """A class of the tree, compared by identity: those of one name under `if` and `else` are different."""

    path: str
    cls: Class

    @property
    def name(self) -> str:
        return self.cls.name

    @property
    def names_module(self) -> bool:
        """Whether torch's Module is among its own bases."""
        return any(base in MODULES for base in self.cls.bases)

    def __repr__(self) -> str:
        return f"ClassRef({self.name}, {self.path}:{self.cls.span.line})"


class External(NamedTuple):
    """A class outside the tree: its name as a file of the tree writes it, and the module it is imported from."""

    name: str
    module: str

    @property
    def is_plain(self) -> bool:
        """Whether it is surely not a checkpointing layer: from torch, the standard library or transformers' core."""
        name, module = self
        if name in _PLAIN_NAMES or name.startswith(TORCH_PREFIXES) or module.startswith(_PLAIN_MODULES):
            return True
        core = module.lstrip(".").removeprefix("transformers.")
        return module.startswith(("...", "transformers")) and not core.startswith("models")

    @property
    def is_of_transformers(self) -> bool:
        """Whether it is imported from the installed transformers."""
        return self.module.partition(".")[0] == "transformers"

    @property
    def is_of_family(self) -> bool:
        """Whether it is a model of one of transformers' families, or the base class of such models."""
        name = self.name.rpartition(".")[2]
        return self.is_of_transformers and name != BASE_MODEL and _MODEL.search(name) is not None

    @property
    def is_layer_of_transformers(self) -> bool:
        """Whether it is one of transformers' checkpointing layers, judged by its name."""
        return self.is_of_transformers and bool(_LAYER.search(self.name)) and not _PART.search(self.name)

    @property
    def holds_layers_of_transformers(self) -> bool:
        """Whether it is a model of transformers, or part of one, whose stack holds layers in late releases."""
        within = self.module == "transformers" or self.module.startswith("transformers.models.")
        return within and bool(_STACK.search(self.name))


Target = ClassRef | External


def is_finished_model(target: Target) -> bool:
    """Tell whether a class is a whole model of transformers, whose own layers checkpoint."""
    return isinstance(target, External) and target.is_of_family and not target.name.endswith(BASE_MODEL)


@cache
def renames(old: str, new: str) -> tuple[tuple[str, str], ...]:
    """Return the prefixes of two class names before each common ending: LlamaModel and FooModel give Llama, Foo."""
    ends = range(-min(len(old), len(new)), 0)
    return tuple((old[:end], new[:end]) for end in ends if old[end].isupper() and old[end:] == new[end:])
