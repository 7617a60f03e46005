"""The sizes of a tiny model, the layers that it keeps, and the context of the rules for one configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

ATTEMPTS = 4
"""How often `tiny_model` tries. Attempts 0 and 1 have one width everywhere, and 1 keeps image, window and kernel
sizes; in 2 widths keep their proportions; in 3 only layers, experts, vocabulary and positions shrink."""
VOCABULARY = 128
WIDTH = 64
HEADS = 4
HEAD_DIM = 16
"""Large enough that the rotary part of a head can be halved twice, for rows and columns."""
LAYERS = 2
PATCH = 8
GRID = 4
"""Patches along each side of an image: a two-by-two merger leaves more than one of them."""
POSITIONS = 128
MELS = 32

_SPECIAL_LAYERS = re.compile(r"att|block_ind|moe|cross|window|rope")
"""What the names of index lists contain that mark special layers."""
_INDEX_LIST = re.compile(r"(index|indices|indexes|idx|idxs|_layers|hook_ids|_blocks)$")
STAGE_DEPTHS = ("depths", "depth", "num_block_repeats", "blocks_per_stage", "stage_num_blocks", "block_sizes")
"""Fields that may be a list of the numbers of layers in each stage."""
STAGES = (
    "depths",
    "num_block_repeats",
    "blocks_per_stage",
    "embed_dims",
    "block_sizes",
    "stage_num_blocks",
    "stage_blocks",
)
"""Fields that are a list if a model has stages."""
_LAYER_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types")
"""Attributes that some configurations compute rather than store."""
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


@dataclass(frozen=True)
class ShrinkContext:
    """The context of the rules for one configuration: its fields, the attempt, and the layers that stay.

    `values` are the original fields. `old_layers` is the original number of layers, 0 if they come in stages;
    `kept_layers` are the indices of those that stay. `tokens` maps special token ids beyond the tiny vocabulary to
    new ones. `rope` holds rotary parameters that the model assumes if the configuration leaves them out.
    """

    values: Mapping[str, Any]
    attempt: int
    old_layers: int
    kept_layers: tuple[int, ...]
    tokens: Mapping[int, int]
    rope: Mapping[str, Any]

    @property
    def layers(self) -> int:
        """The number of layers of the tiny model."""
        return len(self.kept_layers)

    def kept_indices(self, name: str, value: Any) -> Any:
        """Change a list of layer indices to layers that still exist; None for a field that is not such a list.

        A list that marks special layers then names only the last, so that one special and one plain layer stay; others
        name as many as there are. Some lists count from 0, some from 1, some from the end.
        """
        if not _INDEX_LIST.search(name) or not _is_index_list(value, self.old_layers):
            return None
        if min(value) < 0:
            return type(value)(max(min(i, self.layers - 1), -self.layers) for i in value)
        first = int(max(value) >= self.old_layers)
        room = range(first, first + self.layers)
        if all(i in room for i in value):
            return value
        return type(value)(room[-1:] if _SPECIAL_LAYERS.search(name) else room[-len(value) :])


def chosen_layers(config: PretrainedConfig, values: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """Return the indices of the layers that the tiny model keeps, and the number in the original, 0 with stages.

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
        if len(value) == old and all(isinstance(item, (str, bool, int)) for item in value):
            if isinstance(value[0], str) or len(set(value)) <= 3:  # they name kinds, and one of each has to stay
                count = max(count, *(1 + value.index(kind) for kind in set(value)))
        elif name in ("out_indices", "_out_indices", "backbone_out_indices") and _is_index_list(value, old):
            count = max(count, len(value))
    return tuple(range(min(count, old) if old else count)), old


def _is_index_list(value: Any, old_layers: int) -> bool:
    return all(type(item) is int for item in value) and old_layers > 0 and max(value) <= old_layers
