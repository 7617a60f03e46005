"""A surgery on one model: apply it, switch it on and off, undo it.

1. Only attributes of modules and hooks are set; no module, parameter or class is replaced.
2. What was there before is noted first; undoing puts that back.
3. Everything that a copy of the model needs is on the copy's own modules.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.model_patches.release_names import (
    CLAIM,
    DIFFUSERS_CLAIM,
    EMBEDDING_HANDLES,
    FLAG,
    FUNCTION,
    INNER_SWITCH,
    TIMM_SWITCH,
)
from ckpt_surgery.runtime.blocks import library_switch as library
from ckpt_surgery.runtime.blocks.discovery import Block, enclosing, is_layer, owner_of
from ckpt_surgery.runtime.blocks.selection import SelectedStack, select_stacks
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward, CallOptions, Cut, GivenCaches
from ckpt_surgery.runtime.offload.offloader import Offloader, OffloadStats
from ckpt_surgery.runtime.selective.save_policy import SavePolicy
from ckpt_surgery.runtime.self_check.schedule import CheckSchedule
from ckpt_surgery.runtime.surgery.checkpointing import Checkpointing
from ckpt_surgery.runtime.surgery.options import SurgeryOptions, offload_target
from ckpt_surgery.runtime.surgery.owner_hook import OwnerHook
from ckpt_surgery.runtime.surgery.summary import SurgerySummary, summaries
from ckpt_surgery.runtime.tools.classes import class_of, facts_of
from ckpt_surgery.runtime.tools.containers import Absent, put
from ckpt_surgery.runtime.tools.error_policy import ErrorPolicy
from ckpt_surgery.text import ShownInNotebooks
from ckpt_surgery.undo import Undoable

SURGERY = "_ckpt_surgery"
"""The attribute of a model that holds its surgery."""

_CLAIMS = (CLAIM, DIFFUSERS_CLAIM)
_OURS = (FLAG, INNER_SWITCH, TIMM_SWITCH, FUNCTION, *_CLAIMS, SURGERY)
"""The attributes that a surgery may set on any module."""


class Surgery(Undoable, ShownInNotebooks):
    """Checkpointing that works on one model, until `undo`. Made by `wrap_blocks`; also a context manager.

    `stacks` are all stacks of the model, also those that the options leave alone. Printing the surgery gives a table
    of them. `error_policy` says whether errors in a training step are raised.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.stacks: tuple[SelectedStack, ...] = ()
        self._checkpointing = Checkpointing(SurgeryOptions())  # also while it is switched off
        self._forwards: dict[str, BlockForward] = {}
        self._policies: dict[str, SavePolicy] = {}  # by their patterns in `save`
        self._given_caches = GivenCaches()
        self.error_policy = ErrorPolicy()
        self._fill_caches: set[nn.Module] = set()
        self._left_to_library: dict[str, nn.Module] = {}
        self._noted: dict[tuple[nn.Module, str], Any] = {}  # attributes of modules before the surgery
        self._cuts: Callable[[nn.Module], Cut] | None = None
        self._owner_hooks: list[RemovableHandle] = []
        self._embedding_hooks = set(library.embedding_hooks(model))

    def __str__(self) -> str:
        return str(self.summary())

    @property
    def options(self) -> SurgeryOptions:
        """The options of `wrap_blocks`, with later changes made by switching checkpointing on."""
        return self._checkpointing.options

    @property
    def checkpointing(self) -> Callable[..., Any] | None:
        """The function that checkpoints the blocks; None while checkpointing is switched off."""
        functions = (vars(forward.block).get(FUNCTION) for forward in self._forwards.values())
        function = next(filter(None, functions), None)
        return None if function is None else inspect.unwrap(function)  # something that counts calls may be around it

    @property
    def stats(self) -> OffloadStats | None:
        """The counts of what activation offload has moved so far; None without offload."""
        return None if self.offloader is None else self.offloader.stats

    @property
    def offloader(self) -> Offloader | None:
        """The offloader of the blocks' inputs; None without offload."""
        offloader = getattr(self.checkpointing, "offloader", None)
        return offloader if isinstance(offloader, Offloader) else None

    @property
    def policies(self) -> tuple[SavePolicy, ...]:
        """The policies of `save`, with what they kept in the last step: one for all blocks, or for each pattern."""
        return tuple(self._policies.values())

    def checkpoints(self, block: Block) -> bool:
        """Tell whether a block is checkpointed now, or would be in training mode."""
        return block.name in self._forwards and vars(block.module).get(FUNCTION) is not None

    def summary(self) -> SurgerySummary:
        """Return what is checkpointed now in each stack, and why the rest is left alone."""
        function = self.checkpointing
        stacks = summaries(self.model, self.stacks, self.checkpoints, self.options, on=function is not None)
        return SurgerySummary(
            type(self.model).__name__,
            function,
            tuple(stacks),
            Counter(type(module).__name__ for module in self._left_to_library.values()),
            tuple(kept for policy in self.policies for kept in policy.summaries()),
        )

    def apply(self, options: SurgeryOptions) -> None:
        """Apply the options in place of the present ones, and switch checkpointing on.

        Raises:
            SurgeryError: the options do not suit the model, which is left as it was.
        """
        first = [pattern for pattern, _ in options.first or ()]
        stacks = select_stacks(self.model, classes=options.blocks, patterns=options.stacks, first=first)
        wanted = [stack for stack in stacks if stack.wanted]
        chosen = [block for stack in wanted for block in stack.blocks]
        options.save.check(
            [
                block.name
                for stack in wanted
                for index, block in enumerate(stack.blocks)
                if options.checkpoints(stack.name, index, len(stack.blocks))
            ]
        )
        options.check_blocks({block.name: block.module for block in chosen})
        modules = {block.module for block in chosen}
        self._restore()
        self._note_attributes(modules)
        self.stacks = stacks
        self._left_to_library = self._self_checkpointing()
        self._checkpointing.release()
        self._checkpointing = Checkpointing.of(options, self.error_policy)
        vars(self.model)[SURGERY] = self
        preserve = options.preserve_rng_state is True
        self._policies = {blocks: SavePolicy(names, preserve, blocks) for blocks, names in options.save.names}
        try:
            self._wrap(chosen, options)
            self._take_switches(modules)
            self._hook_owners()
            self._set_functions(self.model, self._checkpointing, options.every_n)
        except BaseException:
            self._restore()
            raise

    def cut(self, cuts: Callable[[nn.Module], Cut] | None) -> None:
        """Let `cuts` choose, for each block, what runs its calls in place of checkpointing; None checkpoints all."""
        self._cuts = cuts
        for forward in self._forwards.values():
            forward.cut = None if cuts is None else cuts(forward.block)

    def change(self, **options: Any) -> None:
        """Change options of `wrap_blocks`, and keep the others; blocks switched off, and options for torch, stay so.

        Args:
            options: names and values of `SurgeryOptions`.

        Raises:
            SurgeryError: the options do not suit the model, which is left as it was.
        """
        blocks = [block for stack in self.stacks if stack.wanted for block in stack.blocks]
        off = [block.module for block in blocks if not self.checkpoints(block)]
        more = self._checkpointing.more
        self.apply(replace(self.options, **options))
        if more:
            self.enable(self.model, partial(checkpoint, **more))
        for module in off:
            self.disable(module)

    def enable(self, model: nn.Module, function: Callable[..., Any], every_n: int = 1) -> None:
        """Checkpoint the blocks inside a part of the model.

        Args:
            model: the part: a module of this model.
            function: `torch.utils.checkpoint.checkpoint`, or a partial of it with options; options that it does not
                give stay as they are. Any other function is called itself.
            every_n: as in `wrap_blocks`; 1 keeps the present value.

        Raises:
            SurgeryError: the options of the function do not suit the model.
        """
        checkpointing = function
        if (options := library.options_of(function)) is not None:
            given, offload = options
            names = ("use_reentrant", "preserve_rng_state", "context_fn")
            own: dict[str, Any] = {name: given[name] for name in names if name in given}
            more = {name: value for name, value in given.items() if name not in own}
            if offload == "cpu":
                own["offload"] = self.options.offload or offload  # only a flag: `wrap_blocks` was told where to
            elif offload is not None:
                own["offload"] = offload_target(offload)
            changed = self._checkpointing.changed(more, **own)
            changed.options.check_blocks({name: forward.block for name, forward in self._forwards.items()})
            checkpointing = self._checkpointing = changed
        self._set_left_to_library(model, function)
        self._set_functions(model, checkpointing, every_n if every_n > 1 else self.options.every_n)

    def disable(self, model: nn.Module) -> None:
        """Run the blocks inside `model` without checkpointing."""
        self._set_left_to_library(model, None)
        self._set_functions(model, None, 1)
        if self.checkpointing is None:
            self._checkpointing.release()

    def undo(self) -> None:
        """Restore the model to its state before `wrap_blocks`.

        Hooks on embeddings and flags that transformers has set since are removed too. A forward that another library
        has put on a block since stays.

        Raises:
            SurgeryError: the surgery was undone already, or a block is no longer in its place; nothing is changed.
        """
        name = type(self.model).__name__
        if self._undone:
            raise SurgeryError(f"the surgery on {name} was undone before: call wrap_blocks again for another one")
        modules = dict(self.model.named_modules())
        for block, forward in self._forwards.items():
            if modules.get(block) is not forward.block:
                raise SurgeryError(
                    f"{forward.place} is no longer at its place in {name}: put it back before the surgery is undone"
                )
        self._restore(handles=True)
        for module, key in set(library.embedding_hooks(self.model)) - self._embedding_hooks:
            module._forward_hooks.pop(key)
        self._checkpointing.release()
        self._undone = True

    def _note_attributes(self, blocks: set[nn.Module]) -> None:
        """Note all that the surgery or transformers may set; handles on embeddings only the first time.

        The forward is noted for `blocks` alone: others may put one on any other module, as `fuse_loss` does on a head.
        """
        before = {key: value for key, value in self._noted.items() if key[1] in EMBEDDING_HANDLES}
        everywhere = (*_OURS, *EMBEDDING_HANDLES)
        self._noted = {
            (module, name): vars(module).get(name, Absent)
            for module in self.model.modules()
            if not isinstance(module, torch.jit.ScriptModule)  # it takes no attributes, and its methods no copies
            for name in {*everywhere, *library.flags_of(module), *(["forward"] if module in blocks else [])}
        } | before

    def _restore(self, *, handles: bool = False) -> None:
        """Restore the attributes, with `handles` those on embeddings too, and remove the hooks on owners of stacks."""
        for hook in self._owner_hooks:
            hook.remove()
        later: dict[nn.Module, Callable[..., Any]] = {}  # forwards that another library has put on blocks since
        for forward in self._forwards.values():
            current = vars(forward.block).get("forward")
            if (current := forward.replacement if current is forward else current) is not None:
                later[forward.block] = current
        for (module, name), value in self._noted.items():
            if handles or name not in EMBEDDING_HANDLES:
                put(vars(module), name, value)
        for block, current in later.items():
            vars(block)["forward"] = current
        for forward in self._forwards.values():
            forward.retire()
        self._owner_hooks.clear()
        self._forwards.clear()

    def _wrap(self, blocks: Collection[Block], options: SurgeryOptions) -> None:
        modules = dict(self.model.named_modules())
        readers = {m for m in modules.values() if class_of(m).__name__ in facts_of(m).reads_caches}
        for block in blocks:  # one at several positions of its stack reads what it has put into a cache itself
            if Counter(modules[block.stack]._modules.values())[block.module] > 1:
                readers.add(modules[owner_of(block.name, modules)])
        self._fill_caches = {module for reader in readers for module in reader.modules()}
        training = {block.stack for block in blocks if block.module.training}
        for block in blocks:
            fills = block.module in self._fill_caches
            around = [modules[name] for name in (block.name, *enclosing(block.name), "")]
            is_frozen_base = block.stack not in training and not any(map(library.takes_switch, around))
            evaluating = is_frozen_base or any(map(library.checkpoints_in_evaluation, around))
            evaluating = evaluating and not is_layer(block.module)
            policy = self._policies.get(options.save.pattern_for(block.name) or "")
            self._forwards[block.name] = vars(block.module)["forward"] = BlockForward(
                block.name,
                block.module,
                options=CallOptions(options.skip_frozen, policy, options.save.offload, fills, evaluating),
                schedule=CheckSchedule(options.checks),
                given_caches=self._given_caches,
                error_policy=self.error_policy,
                original=vars(block.module).get("forward"),
            )
            self._forwards[block.name].cut = None if self._cuts is None else self._cuts(block.module)

    def _self_checkpointing(self) -> dict[str, nn.Module]:
        """Return the modules, by name, that checkpoint by themselves and neither hold a block nor lie in one."""
        blocks = {block.name for stack in self.stacks for block in stack.blocks}
        outside = {outer for name in blocks for outer in (*enclosing(name), "")}
        return {
            name: module
            for name, module in self.model.named_modules()
            if library.has_inline_branch(module)
            and name not in outside
            and blocks.isdisjoint((name, *enclosing(name)))
        }

    def _take_switches(self, blocks: set[nn.Module]) -> None:
        """Make the switching methods of transformers, diffusers and timm switch this surgery."""
        for module in self.model.modules():
            if hasattr(type(module), TIMM_SWITCH):
                vars(module)[TIMM_SWITCH] = CheckpointingSwitch(self, module)
            if library.takes_switch(module):
                vars(module)[INNER_SWITCH] = CheckpointingSwitch(self, module)
                denied = [claim for claim in _CLAIMS if not getattr(module, claim, True)]
                if denied and not blocks.isdisjoint(module.modules()) and library.takes_embedding_hook(module):
                    vars(module).update(dict.fromkeys(denied, True))

    def _hook_owners(self) -> None:
        """Put hooks on the modules whose forwards run blocks, and on the model, since other modules may run them."""
        modules = dict(self.model.named_modules())
        owned: dict[str, list[BlockForward]] = {}
        for block, forward in self._forwards.items():
            owned.setdefault(owner_of(block, modules), []).append(forward)
        needing = self._fill_caches | set(filter(library.needs_cache, modules.values()))
        stop_all = not needing and all(stack.wanted for stack in self.stacks)  # stacks left alone go on using a cache
        for name, forwards in {**owned, "": list(self._forwards.values())}.items():
            owner = modules[name]
            stops = owner not in needing if name else stop_all
            hook = OwnerHook(owner, forwards, self._given_caches, is_outermost=not name, stops_cache=stops)
            self._owner_hooks.append(owner.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))

    def _set_functions(self, scope: nn.Module, function: Callable[..., Any] | None, every_n: int) -> None:
        """Set this function on the chosen blocks inside `scope`, None on the others there, and the flags."""
        inside = set(scope.modules())
        for stack in self.stacks:
            for index, block in enumerate(stack.blocks):
                if stack.wanted and block.module in inside:
                    own, policy = function, self._forwards[block.name].options.policy
                    if policy is not None and isinstance(function, Checkpointing):
                        own = replace(function, save=policy.save)
                    wanted = self.options.checkpoints(stack.name, index, len(stack.blocks), every_n)
                    vars(block.module)[FUNCTION] = own if wanted else None
        on = {
            name: forward for name, forward in self._forwards.items() if vars(forward.block).get(FUNCTION) is not None
        }
        for turn, forward in enumerate(on.values()):
            forward.schedule.restart(self.options.checks, turn, len(on))
        for policy in self.policies:
            policy.expect([forward.name for forward in on.values() if forward.options.policy is policy])
        # flags are on for the stacks with checkpointed blocks, not for models: those would drop a cache they are given
        active = {outer for block in on for outer in (*enclosing(block), "")}
        wanted_stacks = {stack.name for stack in self.stacks if stack.wanted}
        for name, module in self.model.named_modules():
            if name in wanted_stacks and not library.checkpoints_itself(module):
                vars(module)[FLAG] = name in active
            elif name not in self._left_to_library:
                for flag in library.flags_of(module):
                    setattr(module, flag, False)

    def _set_left_to_library(self, scope: nn.Module, function: Callable[..., Any] | None) -> None:
        inside = set(scope.modules())
        for module in self._left_to_library.values():
            if module in inside:
                library.set_own_switch(module, function)


class CheckpointingSwitch:
    """A replacement of the method by which transformers, timm or open_clip switches checkpointing."""

    def __init__(self, surgery: Surgery, model: nn.Module) -> None:
        self._surgery = surgery
        self.model = model

    def __call__(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
        impl: str = "",  # an option of open_clip: there is one implementation here
    ) -> None:
        """Checkpoint the blocks of this model with the options in the function, or stop doing so."""
        if enable:
            self._surgery.enable(self.model, gradient_checkpointing_func, every_n_layers)
        else:
            self._surgery.disable(self.model)


def surgeries_in(model: nn.Module) -> list[Surgery]:
    """List the surgeries on a model and on the modules in it, each once."""
    held = (vars(module).get(SURGERY) for module in model.modules())
    return list({id(surgery): surgery for surgery in held if isinstance(surgery, Surgery)}.values())
