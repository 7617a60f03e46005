"""A training script's text to its `ScriptFacts`, by `ast` alone; None for any other file."""

from __future__ import annotations

import ast

from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.scripts.checkpoints import CheckpointReader
from ckpt_surgery.codemods.scripts.collectives import collectives
from ckpt_surgery.codemods.scripts.launches import launches
from ckpt_surgery.codemods.scripts.loads import SPLITTING, split_loads
from ckpt_surgery.codemods.scripts.losses import LossReader
from ckpt_surgery.codemods.scripts.names import Names
from ckpt_surgery.codemods.scripts.signs import signs, trainer_origins
from ckpt_surgery.model_patches.release_names import TRAINING_SWITCH

PROCESSES = (
    "DistributedDataParallel",
    "torch.distributed",
    "import distributed",
    "Accelerator(",
    "accelerator.",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "unwrap_model(",
    "Trainer(",
    "Trainer)",
    "torchrun",
    "ddp_",
    "accelerate launch",
    "FullyShardedDataParallelPlugin",
    "DeepSpeedPlugin",
    "deepspeed.initialize",
)
_COLLECTIVE = ("all_", "barrier", "broadcast", "reduce", "gather", "scatter", "wait_for_everyone")
_INNER = (
    ".module",
    "unwrap_model",
    "extract_model_from_parallel",
    "Trainer",
    "DistributedDataParallel",
    "DDP",
    "prepare",
)


def extract_script(tree: ast.Module, text: str) -> ScriptFacts | None:
    """What a file says as a training script, or None if there is nothing for a rule to look at.

    Plain searches of the text come first: most files of a tree of models are not scripts, and cost nothing more.
    """
    trains = _has(text, ("backward(", "compute_loss"))
    checkpoints = _has(text, ("use_reentrant", "checkpoint(", *TRAINING_SWITCH))
    loads = "device_map" in text and any(
        f'"{placement}"' in text or f"'{placement}'" in text for placement in SPLITTING
    )
    around = trains and _has(text, _INNER)
    ranks = ("distributed" in text or "accelerator." in text) and _has(text, _COLLECTIVE)
    if not (around or ranks or loads or checkpoints):
        return None
    names = Names(tree)
    losses = LossReader(names) if around else None
    reader = CheckpointReader(names) if checkpoints else None
    facts = ScriptFacts(
        signs=(),
        bypasses=tuple(losses.read()) if losses else (),
        collectives=tuple(collectives(names)) if ranks else (),
        loads=tuple(split_loads(names)) if loads else (),
        modes=tuple(reader.modes) if reader else (),
        switches=tuple(reader.switches) if reader else (),
        launches=(),
        trainers=(),
        gave_up=losses is not None and losses.gave_up,
    )
    launched = tuple(launches(names, text)) if reader else ()
    if not any(facts) and not any(launch.checkpointing for launch in launched):
        return None
    return facts._replace(
        signs=tuple(signs(names, text)),
        launches=launched,
        trainers=tuple(trainer_origins(names)) if reader else (),
    )


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
