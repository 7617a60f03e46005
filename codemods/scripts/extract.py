"""A training script's text to its `ScriptFacts`, by `ast` alone; None for any other file."""

from __future__ import annotations

import ast
import re

from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.scripts.collectives import collectives
from ckpt_surgery.codemods.scripts.launches import launches
from ckpt_surgery.codemods.scripts.loads import SPLITTING, split_loads
from ckpt_surgery.codemods.scripts.losses import LossReader
from ckpt_surgery.codemods.scripts.names import Names
from ckpt_surgery.codemods.scripts.signs import checkpoint_modes, checkpoint_switches, signs, trainer_origins
from ckpt_surgery.model_patches.release_names import TRAINING_SWITCH

PROCESSES = (
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
"""A file without any of these is no training script."""
_COLLECTIVE = re.compile(
    r"(?:barrier|all_\w+|broadcast\w*|wait_for_everyone|pad_across_processes)\("
    r"|(?:\.|import .*)(?:gather|reduce|scatter)\w*"
)
_RANKS = re.compile(r"rank|main_process|\.grad\b", re.I)
_INNER = re.compile(
    r"\.module\b|unwrap_model|extract_model_from_parallel|Trainer\)|Trainer, |DistributedDataParallel|DDP|\.prepare"
)
_CHECKPOINTS = re.compile(rf"use_reentrant|\bcheckpoint\(|{'|'.join(map(re.escape, TRAINING_SWITCH))}")
_SPLITTING = re.compile(rf"([\"'])(?:{'|'.join(SPLITTING)})\1")


def extract_script(tree: ast.Module, text: str) -> ScriptFacts | None:
    """What a file says as a training script, or None if there is nothing for a rule to look at.

    Plain searches of the text come first: most files of a tree of models are not scripts, and cost nothing more.
    """
    checkpoints = _CHECKPOINTS.search(text)
    loads = "device_map" in text and _SPLITTING.search(text)
    around = ("backward(" in text or "compute_loss" in text) and _INNER.search(text)
    ranks = ("distributed" in text or "accelerator." in text) and _COLLECTIVE.search(text) and _RANKS.search(text)
    if not (around or ranks or loads or checkpoints):
        return None
    names = Names(tree)
    losses = LossReader(names)
    facts = ScriptFacts(
        bypasses=losses.read() if around else (),
        collectives=tuple(collectives(names) if ranks else ()),
        loads=tuple(split_loads(names) if loads else ()),
        modes=tuple(checkpoint_modes(names) if checkpoints else ()),
        switches=tuple(checkpoint_switches(names) if checkpoints else ()),
        gave_up=losses.gave_up,
    )
    launched = tuple(launches(names, text) if checkpoints else ())
    if not any(facts) and not any(launch.checkpointing for launch in launched):
        return None
    return facts._replace(
        signs=tuple(signs(names, text)),
        launches=launched,
        trainers=tuple(trainer_origins(names) if checkpoints else ()),
    )
