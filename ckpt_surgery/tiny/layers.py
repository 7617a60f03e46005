"""Which layers of a model stay, and how lists of layer indices follow them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from ckpt_surgery.tiny.sizes import LAYERS, ShrinkContext

_MAIN_COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "n_layers",
    "n_layer",
    "depth",
    "layers",
    "encoder_layers",
    "decoder_layers",
)
_LAYER_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types")
"""Attributes that some configurations compute rather than store."""
STAGES = (
    "depths",
    "num_block_repeats",
    "blocks_per_stage",
    "embed_dims",
    "block_sizes",
    "stage_num_blocks",
    "stage_blocks",
)
STAGE_DEPTHS = ("depths", "depth", "num_block_repeats", "blocks_per_stage", "stage_num_blocks", "block_sizes")
_INDEX_LIST = re.compile(r"(index|indices|indexes|idx|idxs|_layers|hook_ids|_blocks)$")


def chosen_layers(config: PretrainedConfig, values: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """The indices of the layers that the tiny model keeps, and how many the original has: 0 if they come in stages.

    It keeps the shortest prefix that holds every kind of layer, and at least two. If late layers share the keys and
    values of earlier ones, each kind is kept twice: once to compute them and once to share them.
    """
    if any(isinstance(values.get(name), (list, tuple)) for name in STAGES):
        return tuple(range(LAYERS)), 0
    computed = {n: getattr(config, n) for n in _LAYER_KINDS if isinstance(getattr(config, n, None), (list, tuple))}
    values = {**computed, **values}
    old = next((values[n] for n in _MAIN_COUNTS if type(values.get(n)) is int and values[n] > 0), 0)
    types = values.get("layer_types")
    if values.get("num_kv_shared_layers") and isinstance(types, (list, tuple)) and len(types) == old:
        firsts = tuple(types.index(kind) for kind in dict.fromkeys(types))
        return firsts * 2, old
    count = LAYERS
    for name, value in values.items():
        if not isinstance(value, (list, tuple)) or not value:
            continue
        if len(value) == old and _names_kinds(value):
            count = max(count, _prefix_with_all(value))
        elif name in ("out_indices", "_out_indices", "backbone_out_indices") and _is_index_list(value, old):
            count = max(count, len(value))
    return tuple(range(min(count, old) if old else count)), old


def _names_kinds(value: Any) -> bool:
    plain = all(isinstance(item, (str, bool, int)) for item in value)
    return plain and (isinstance(value[0], str) or len(set(value)) <= 3)


def _prefix_with_all(kinds: Any) -> int:
    wanted = set(kinds)
    return next(n for n in range(1, len(kinds) + 1) if set(kinds[:n]) == wanted)


def _is_index_list(value: Any, old_layers: int) -> bool:
    return all(type(item) is int for item in value) and old_layers > 0 and max(value) <= old_layers


def is_layer_index_list(name: str, value: Any, context: ShrinkContext) -> bool:
    """Whether a field lists indices of layers."""
    return bool(_INDEX_LIST.search(name)) and _is_index_list(value, context.old_layers)


def kept_indices(name: str, value: Any, context: ShrinkContext) -> Any:
    """A list of layer indices, changed to layers that still exist.

    A list that marks special layers names the last one only, so that one special and one plain layer stay; others
    name as many as there are. Some lists count from 0, some from 1, some from the end.
    """
    if min(value) < 0:
        return type(value)(max(min(i, context.layers - 1), -context.layers) for i in value)
    first = int(max(value) >= context.old_layers)
    room = range(first, first + context.layers)
    if all(i in room for i in value):
        return value
    return type(value)(room[-1:] if _MARKS.search(name) else room[-len(value) :])


_MARKS = re.compile(r"att|block_ind|moe|cross|window|rope")
