"""The memory that torch's CUDA allocator takes for a tensor, and leaves of a card."""

from __future__ import annotations

import pytest

from ckpt_surgery.planning.devices import block_bytes, segment_bytes

MIB = 2**20
ALLOCATED = {
    0: 0,
    1: 512,
    513: 1024,
    MIB - 1: MIB,
    5 * MIB + 1: 5 * MIB + 512,  # of a segment of 20 MiB
    49 * MIB: 50 * MIB,  # 1 MiB is not split off
    49 * MIB - 512: 49 * MIB - 512,
    197 * MIB // 4: 50 * MIB,  # the hidden states of a ViT-L with 128 images
    100 * MIB: 100 * MIB,
}


def test_a_tensor_takes_what_is_not_split_off_its_segment() -> None:
    assert {size: block_bytes(size) for size in ALLOCATED} == ALLOCATED


@pytest.mark.parametrize(
    ("size", "segment"), [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 1, 20), (10 * MIB, 10), (10 * MIB + 1, 12)]
)
def test_segments_are_as_large_as_the_allocator_asks_for(size: int, segment: int) -> None:
    assert segment_bytes(size) == segment * MIB
