"""Read the facts of a file as a training script; None if no rule about scripts has anything to look at."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.scripts.collectives import collectives, may_call_collectives
from ckpt_surgery.codemods.scripts.launches import commands, launches
from ckpt_surgery.codemods.scripts.losses import LossReader
from ckpt_surgery.codemods.scripts.names import names_of
from ckpt_surgery.codemods.scripts.ranks import RANKS
from ckpt_surgery.codemods.scripts.signs import checkpoint_modes, checkpoint_switches, signs
from ckpt_surgery.codemods.scripts.split_loads import SPLITTING, split_loads
from ckpt_surgery.model_patches.release_names import TRAINING_SWITCH

_SIGNS = ("use_reentrant", "heckpoint", "device_map", "backward(", "compute_loss", "distributed", "accelerator.")
"""A file without any of these has nothing that rules about scripts look at."""
_PROCESS_SIGNS = (
    "import distributed",
    "accelerate launch",
    "DistributedDataParallel",
    "torch.distributed",
    "Accelerator(",
    "accelerator.",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "unwrap_model(",
    "Trainer(",
    "Trainer)",
    "torchrun",
    "ddp_",
    "FullyShardedDataParallelPlugin",
    "DeepSpeedPlugin",
    "deepspeed.initialize",
)
"""A file without any of these is not a training script."""
_RANK = re.compile(rf"\b(?:{'|'.join(sorted(RANKS))})\b|\.grad is (?:not )?None")
_INNER_MODULE = re.compile(
    r"\.module\b|unwrap_model|extract_model_from_parallel|Trainer\)|Trainer, |DistributedDataParallel|DDP|\.prepare"
)
_CHECKPOINTS = re.compile(
    rf"heckpoint(?:(?<=\bcheckpoint)\(|ing(?:{'|'.join(f'(?<={name})' for name in TRAINING_SWITCH)}))"
)
_SPLITTING = re.compile(rf"([\"'])(?:{'|'.join(SPLITTING)})\1")


class _Interests(NamedTuple):
    """The kinds of facts that a search of the text cannot rule out. It spares most files, which are not scripts."""

    checkpoints: bool
    loads: bool
    bypasses: bool
    collectives: bool

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, text: str) -> _Interests:
        return cls(
            checkpoints="use_reentrant" in text or bool(_CHECKPOINTS.search(text)),
            loads="device_map" in text and bool(_SPLITTING.search(text)),
            bypasses=("backward(" in text or "compute_loss" in text) and bool(_INNER_MODULE.search(text)),
            collectives=may_call_collectives(text) and bool(_RANK.search(text)),
        )


def may_be_script(text: str) -> bool:
    """Tell whether rules about scripts may find something in a file with one of the signs."""
    return any(_Interests.of(text)) and any(process in text for process in _PROCESS_SIGNS)


def _read(file: FileSyntax) -> ScriptFacts | None:
    text, names = file.source, names_of(file.tree)
    may = _Interests.of(text)
    losses = LossReader(names)
    facts = ScriptFacts(
        bypasses=losses.read() if may.bypasses else (),
        collectives=tuple(collectives(names) if may.collectives else ()),
        loads=tuple(split_loads(names) if may.loads else ()),
        modes=tuple(checkpoint_modes(names) if may.checkpoints else ()),
        switches=tuple(checkpoint_switches(names) if may.checkpoints else ()),
        gave_up=losses.gave_up,
    )
    if not any(facts) and not (may.checkpoints and any(launch.checkpointing for launch in commands(text))):
        return None
    return facts._replace(
        signs=tuple(signs(names, text)),
        launches=tuple(launches(names, text) if may.checkpoints else ()),
        trainers=tuple(names.trainer_origins() if may.checkpoints else ()),
    )


SCRIPT = FileFact[ScriptFacts | None]("script", _read, nothing=None, signs=_SIGNS, worth=may_be_script)
