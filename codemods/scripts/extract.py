"""A training script's text to its `ScriptFacts`, by `ast` alone; None for any other file."""

from __future__ import annotations

import ast

from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.scripts.checkpoints import reentrant
from ckpt_surgery.codemods.scripts.collectives import collectives
from ckpt_surgery.codemods.scripts.loads import SPLITTING, split_loads
from ckpt_surgery.codemods.scripts.losses import LossReader
from ckpt_surgery.codemods.scripts.names import Names
from ckpt_surgery.codemods.scripts.signs import signs

_PROCESSES = (
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
    if not _has(text, _PROCESSES):
        return None
    trains = _has(text, ("backward(", "compute_loss"))
    checkpoints = "use_reentrant" in text or "checkpoint(" in text or "checkpointing_enable" in text
    loads = "device_map" in text and any(
        f'"{placement}"' in text or f"'{placement}'" in text for placement in SPLITTING
    )
    around = trains and _has(text, _INNER)
    ranks = ("distributed" in text or "accelerator." in text) and _has(text, _COLLECTIVE)
    if not (around or ranks or loads or checkpoints):
        return None
    names = Names(tree)
    losses = LossReader(names)
    facts = ScriptFacts(
        signs=(),
        bypasses=tuple(losses.read()) if around else (),
        collectives=tuple(collectives(names)) if ranks else (),
        loads=tuple(split_loads(names)) if loads else (),
        reentrant=tuple(reentrant(names)) if checkpoints else (),
        gave_up=losses.gave_up,
    )
    return facts._replace(signs=tuple(signs(names, text))) if any(facts) else None


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
