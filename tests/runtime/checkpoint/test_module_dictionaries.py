"""Copies of the dictionaries of modules: each change that a block or somebody else can make is seen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.checkpoint.module_dictionaries import DictionaryCopies, spaces_of

pytestmark = pytest.mark.both


class Module(nn.Module):
    """It has one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.mean: Tensor
        self.inner = nn.Linear(2, 2)
        self.table = torch.ones(3)
        self.scale = nn.Parameter(torch.ones(1))
        self.factor = torch.ones(())
        self.note = "first"


def copies_of(module: nn.Module, *, replaced: bool = False) -> DictionaryCopies:
    spaces = [space for part in module.modules() for space in spaces_of(part)]
    dicts = [space.held for space in spaces]
    return DictionaryCopies(dicts, list(map(dict, dicts)), [space.names() for space in spaces], replaced=replaced)


def rename(module: Module) -> None:
    module._modules["other"] = module._modules.pop("inner")


def rename_attribute(module: Module) -> None:
    vars(module)["remark"] = vars(module).pop("note")


CHANGES: dict[str, Callable[[Module], object]] = {
    "an attribute is set": lambda module: setattr(module, "note", "second"),
    "an attribute is added": lambda module: setattr(module, "calls", 0),
    "an attribute is deleted": lambda module: delattr(module, "note"),
    "an attribute has another name": rename_attribute,
    "a table of several elements is replaced": lambda module: setattr(module, "table", torch.ones(3)),
    "a tensor of one element is replaced by an equal one": lambda module: setattr(module, "factor", torch.ones(())),
    "it evaluates": lambda module: module.eval(),
    "a forward is put on it": lambda module: setattr(module.inner, "forward", print),
    "a parameter is replaced": lambda module: setattr(module, "weight", nn.Parameter(torch.ones(2))),
    "a parameter of one element is replaced by an equal one": lambda module: setattr(
        module, "scale", nn.Parameter(torch.ones(1))
    ),
    "a parameter gets an attribute": lambda module: setattr(module.weight, "shard", 1),
    "a parameter comes where none was": lambda module: setattr(module.inner, "bias", None),
    "a buffer is replaced": lambda module: setattr(module, "mean", torch.zeros(2)),
    "a buffer is registered": lambda module: module.inner.register_buffer("mask", torch.ones(1)),
    "a module is replaced": lambda module: setattr(module, "inner", nn.Linear(2, 2)),
    "a module has another name": rename,
    "torch's table is another": lambda module: setattr(module, "_parameters", dict(module._parameters)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_copies_do_not_hold_after_a_change(change: Callable[[Module], object]) -> None:
    module = Module()
    copies = copies_of(module)
    assert copies.still_hold()
    change(module)
    assert not copies.still_hold()


def test_hooks_and_what_is_written_into_tensors_are_no_changes_of_dictionaries() -> None:
    module = Module()
    copies = copies_of(module)
    module.register_forward_hook(lambda *_: None)
    module.inner._forward_hooks = OrderedDict()
    module.mean.add_(1)
    assert copies.still_hold()


def test_where_something_was_replaced_in_the_copies_they_never_hold() -> None:
    assert not copies_of(Module(), replaced=True).still_hold()
