"""What PyTorch takes of a CUDA device for a tensor and beside them, where that is known from its source.

The workspace of cuDNN is not counted: it chooses by itself, for each shape as it runs, and publishes no rule.
"""

from __future__ import annotations

_MIB = 2**20
_CUBLASLT = _MIB
_THREADS = 2
_CONTEXT = 512 * _MIB
_LEAST_BLOCK = 512
_SMALL = _MIB
_SMALL_SEGMENT = 2 * _MIB
_MIDDLE_SEGMENT = 20 * _MIB
_LARGE = 10 * _MIB
_LARGE_UNIT = 2 * _MIB


def cublas_workspace(capability: float) -> int:
    """The bytes of workspace that training holds for matrix products on a device of this compute capability.

    Each thread that multiplies has a handle of its own, the one of the forward and autograd's of the backward, with a
    workspace for cuBLAS, 32 MiB on compute capability 9.0 and `:4096:2:16:8` KiB on all others, and one of 1 MiB for
    cuBLASLt (`parseChosenWorkspaceSize` and `parseCUDABlasLtWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp
    of pytorch at 26a39059). On one H200, 69 MB were missing in every language model, and this is 69,206,016 bytes. The
    variables CUBLAS_WORKSPACE_CONFIG and CUBLASLT_WORKSPACE_SIZE, which change it, are not read.
    """
    cublas = 32 * _MIB if capability == 9.0 else (2 * 4096 + 8 * 16) * 1024
    return _THREADS * (cublas + _CUBLASLT)


def segment_bytes(size: int) -> int:
    """The bytes that torch asks the driver for, where nothing in its cache can hold so many.

    They are what an OutOfMemoryError says that it tried to allocate. 2 MiB for up to 1 MiB, 20 MiB below 10 MiB, then
    multiples of 2 MiB: `get_allocation_size` in c10/cuda/CUDACachingAllocator.cpp of pytorch at eb42ad6ec, with the
    sizes of c10/core/AllocatorConfig.h at cf30153c4 (2.13.0). PYTORCH_ALLOC_CONF, which changes it, is not read.
    """
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _MIDDLE_SEGMENT if size < _LARGE else -(-size // _LARGE_UNIT) * _LARGE_UNIT


def block_bytes(size: int) -> int:
    """The bytes that torch counts as allocated for a tensor of so many, in a segment of its own.

    Sizes are rounded up to 512 bytes. What a segment has more is split off, but not if it is no more than 1 MiB of a
    large one: `round_size` and `should_split` in the same file. So a tensor of 49.25 MiB takes 50. What takes the
    place of another may get up to 1 MiB more than this, or less.
    """
    if not size:
        return 0
    rounded = -(-size // _LEAST_BLOCK) * _LEAST_BLOCK
    left = segment_bytes(rounded) - rounded
    return rounded + left if rounded > _SMALL and left <= _SMALL else rounded


def step_memory(total: int, in_use: int | None = None) -> int:
    """The bytes of a card with `total` that the tensors of a step may take, all told: what peaks are held against.

    `in_use` is what is taken before, of this process and of others; torch.cuda.mem_get_info tells it on the card
    itself. Without it the CUDA context is taken off as 512 MiB, an estimate: torch 2.10.0+cu130 had 426 MiB after its
    first call on an RTX 6000 Ada (unslothai/unsloth-zoo, pull request 1053), and kernels load as they are first run.
    Fragments of the allocator's segments are not in it: they need a margin.
    """
    return max(total - (_CONTEXT if in_use is None else in_use), 0)
