"""Find the functions, methods and attributes of a file that checkpoint their arguments."""

from __future__ import annotations

from ckpt_surgery.codemods.facts.checkpoint_helpers import ArgumentKeys, speaks_of_checkpointing
from ckpt_surgery.codemods.facts.fact import ClassFact, FileFact
from ckpt_surgery.codemods.facts.file_syntax import methods_of

FUNCTIONS = FileFact[dict[str, ArgumentKeys]](
    "checkpointing_functions",
    lambda file: file.helpers.functions,
    nothing={},
    signs=("checkpoint",),
    worth=speaks_of_checkpointing,
)
"""Functions that checkpoint arguments, each with those arguments."""
METHODS = ClassFact[dict[str, ArgumentKeys]](
    "checkpointing_methods",
    lambda cls, file: (
        dict(file.helpers.of_class([each for each in methods_of(cls) if file.helpers.may_be_in(file.text(each))]))
        if file.may_checkpoint
        else {}
    ),
    nothing={},
    signs=(),
)
"""Methods that checkpoint arguments, and attributes that hold a checkpoint function, each with those arguments."""
