"""What PyTorch allocates on a CUDA device beside tensors, where that is known from its source: workspace of cuBLAS.

The workspace of cuDNN is not counted: it chooses by itself, for each shape as it runs, and publishes no rule.
"""

from __future__ import annotations

_MIB = 2**20
_CUBLASLT = _MIB
_THREADS = 2


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
