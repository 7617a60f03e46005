"""Memory that PyTorch takes on a CUDA device for and beside tensors, as far as its source says.

cuDNN's workspace is not counted: cuDNN chooses it at run time for each shape, and publishes no rule.
"""

from __future__ import annotations

_MIB = 2**20
_CUBLASLT = _MIB
_THREADS = 2
_LEAST_BLOCK = 512
_SMALL = _MIB
_SMALL_SEGMENT = 2 * _MIB
_MIDDLE_SEGMENT = 20 * _MIB
_LARGE = 10 * _MIB
_LARGE_UNIT = 2 * _MIB


def cublas_workspace(capability: float) -> int:
    """Return the bytes of workspace that training holds for matrix products at this compute capability.

    The two threads that multiply, the forward's and autograd's for the backward, each have a handle with two
    workspaces: cuBLAS's, 32 MiB at compute capability 9.0 and `:4096:2:16:8` KiB at all others, and cuBLASLt's of 1
    MiB (`parseChosenWorkspaceSize` and `parseCUDABlasLtWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp of
    pytorch at 26a39059). On one H200, 69 MB were missing in every language model, and this is 69,206,016 bytes. The
    variables CUBLAS_WORKSPACE_CONFIG and CUBLASLT_WORKSPACE_SIZE, which change the sizes, are not read.
    """
    cublas = 32 * _MIB if capability == 9.0 else (2 * 4096 + 8 * 16) * 1024
    return _THREADS * (cublas + _CUBLASLT)


def segment_bytes(size: int) -> int:
    """Return the bytes that torch requests from the driver when no cached segment has room for `size` bytes.

    An OutOfMemoryError says that it tried to allocate this many. 2 MiB for up to 1 MiB, 20 MiB below 10 MiB, then
    multiples of 2 MiB: `get_allocation_size` in c10/cuda/CUDACachingAllocator.cpp of pytorch at eb42ad6ec, with the
    sizes of c10/core/AllocatorConfig.h at cf30153c4 (2.13.0). PYTORCH_ALLOC_CONF, which changes it, is not read.
    """
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _MIDDLE_SEGMENT if size < _LARGE else -(-size // _LARGE_UNIT) * _LARGE_UNIT


def block_bytes(size: int) -> int:
    """Return the bytes that torch counts as allocated for a tensor of `size` bytes in its own segment.

    Sizes are rounded up to 512 bytes. The rest of a segment is split off, unless it is at most 1 MiB of a large one:
    `round_size` and `should_split` in the same file. So a tensor of 49.25 MiB takes 50. A tensor that reuses the block
    of another may take up to 1 MiB more or less than this.
    """
    if not size:
        return 0
    rounded = -(-size // _LEAST_BLOCK) * _LEAST_BLOCK
    left = segment_bytes(rounded) - rounded
    return rounded + left if rounded > _SMALL and left <= _SMALL else rounded
