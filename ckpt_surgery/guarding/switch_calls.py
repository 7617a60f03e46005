"""Note the calls that switch checkpointing on in transformers, and the options that each of them overrides."""

from __future__ import annotations

import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial, wraps
from itertools import takewhile
from traceback import walk_stack
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.measure.own_checkpoints import OURS
from ckpt_surgery.model_patches.release_names import DIFFUSERS_FUNCTION as FUNCTION
from ckpt_surgery.model_patches.release_names import INNER_SWITCH
from ckpt_surgery.runtime.blocks.library_switch import options_of, takes_switch
from ckpt_surgery.runtime.surgery.surgery import CheckpointingSwitch
from ckpt_surgery.undo import Undoable

_LIBRARIES = tuple(filter(None, (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), site.USER_SITE, "<")))


def _text(value: Any) -> str:
    """Return a value as text, a function by its name: the record must not keep the model alive."""
    while isinstance(value, partial):
        value = value.func
    return getattr(value, "__qualname__", "") or repr(value)


_DEFAULTS: Mapping[str, str] = {
    **{
        p.name: _text(p.default) for p in inspect.signature(checkpoint).parameters.values() if p.kind is p.KEYWORD_ONLY
    },
    "preserve_rng_state": "True",
    "offload": "None",
    "every_n_layers": "1",
    FUNCTION: _text(checkpoint),
}
"""The options of a call that gives none."""


@dataclass(frozen=True, slots=True)
class SwitchCall:
    """A call that switched checkpointing on: its file and line, and all options in force since then, as text."""

    place: str
    options: Mapping[str, str]


class SwitchCalls(Undoable):
    """A watch on the method of transformers that switches checkpointing on, from `watch` until `undo`."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[nn.Module, SwitchCall] = WeakKeyDictionary()
        self._overrides: WeakKeyDictionary[nn.Module, list[str]] = WeakKeyDictionary()
        self._replaced = ExitStack()

    def watch(self) -> None:
        """Start watching; this imports transformers."""
        from transformers import PreTrainedModel

        home = inspect.getfile(PreTrainedModel)
        for owner, name in ((PreTrainedModel, INNER_SWITCH), (CheckpointingSwitch, "__call__")):
            method = vars(owner)[name]
            setattr(owner, name, self._noting(method, home))
            self._replaced.callback(setattr, owner, name, method)

    def undo(self) -> None:
        self._replaced.close()
        self._undone = True

    def of(self, model: nn.Module) -> list[list[str]]:
        """Return the lists that collect the overrides in a model as text, now and later."""
        return [self._overrides.setdefault(part, []) for part in model.modules() if takes_switch(part)]

    def _noting(self, method: Callable[..., Any], home: str) -> Callable[..., Any]:
        signature = inspect.signature(method)

        @wraps(method)
        def switch(switched: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(switched, *args, **kwargs)
            with suppress(Exception):  # the script's own call has succeeded
                given = signature.bind(switched, *args, **kwargs)
                given.apply_defaults()
                if given.arguments["enable"]:
                    self._note(switched, given.arguments[FUNCTION], given.arguments.get("every_n_layers", 1), home)
            return result

        return switch

    def _note(self, switched: Any, function: Callable[..., Any], every_n: int, home: str) -> None:
        surgical = isinstance(switched, CheckpointingSwitch)
        frames = ((frame.f_code.co_filename, line) for frame, line in walk_stack(sys._getframe(2)))
        inside = takewhile(lambda call: not call[0].startswith(OURS), frames)  # not the frames that run the script
        calls = [(file, line) for file, line in inside if file != home]
        file, line = next((call for call in calls if not call[0].startswith(_LIBRARIES)), calls[0])
        given, offload = options_of(function) or (getattr(function, "keywords", {}) | {FUNCTION: function}, None)
        given |= {"offload": offload} if offload else {}
        given |= {"every_n_layers": every_n} if every_n > 1 else {}
        options = {name: _text(value) for name, value in given.items()}
        for part in filter(takes_switch, (switched.model if surgical else switched).modules()):
            before = self._last.get(part)
            # under a surgery, what a call does not give stays as it was
            call = SwitchCall(f"{file}:{line}", {**(before.options if surgical and before else _DEFAULTS), **options})
            if before is not None:
                names = [n for n in {**before.options, **call.options} if before.options.get(n) != call.options.get(n)]
                now, then = (
                    ", ".join(f"{name}={each.options.get(name, 'None')}" for name in names) + f" at {each.place}"
                    for each in (call, before)
                )
                override = f"checkpointing was switched on with other options before: {now} overrides {then}"
                noted = self._overrides.setdefault(part, [])
                noted += [override] if names and override not in noted else []
            self._last[part] = call
