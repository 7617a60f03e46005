"""The names of torch that are private, or that not every release has.

Private names begin with an underscore, or are attributes of such a name; torch may drop them without notice. The
package takes them from here only, and reads only the attributes in `ATTRIBUTES` from objects of torch:
tests/test_torch_names.py fails for any other use. Names of operators and files that are only compared as text are not
here: if one is missing, nothing equals it.

torch 2.8.0, 2.11.0, 2.13.0, 2.14.1 and 2.15.0 have all of them, unless a comment says otherwise. A missing operator is
None, and nothing runs it. If any other name is missing, importing this module fails with its name; only the functions
of `kernel_reader` have a substitute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from types import CodeType, MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.autograd import Variable, forward_ad
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper as ActivationWrapper
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper as CheckpointWrapper
from torch.nn.modules import batchnorm, conv, dropout
from torch.utils import _python_dispatch, checkpoint
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only


def _operator(name: str) -> Any:
    """Return an operator of torch; None if it has none of this name."""
    packet = getattr(torch.ops.aten, name, None)
    return None if packet is None else packet.default


# modules
FSDP1_FLATTENED = "_fsdp_flattened"
"""The attribute that marks the parameters that FSDP1 manages."""
COMPOSABLE_CHECKPOINT = "torch.distributed._composable.checkpoint_activation"
"""The module that defines the hooks of the composable checkpoint."""
FORWARD_HOOKS = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
)
"""The tables of a module's hooks around its forward."""
CHECKPOINT_WRAPPED_MODULE = checkpoint_wrapper._CHECKPOINT_WRAPPED_MODULE
ConvNd = conv._ConvNd
DropoutNd = dropout._DropoutNd
NormBase = batchnorm._NormBase
MODULE_CALL = nn.Module._call_impl.__code__
LinearCrossEntropyOptions: Any = getattr(nn, "LinearCrossEntropyOptions", None)
"""In torch 2.13 and later; without it, a loss with class weights needs the logits."""

# the graph, and the engine that runs it
engine: Any = Variable._execution_engine
current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node  # None outside the engine
current_graph_task_id = torch._C._current_graph_task_id
keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph  # only inside a backward
next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
will_execute: Callable[[Any], bool] = torch._C._will_engine_execute_node
saved_tensors_hooks_now: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks  # not in 2.7
StopRecomputationError = checkpoint._StopRecomputationError
CheckpointFrame = checkpoint._CheckpointFrame
SELECTIVE_MODES = (checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode)
"""The modes under which a block runs if its checkpoint has a selective policy."""
CHECKPOINT_GENERATOR = checkpoint._checkpoint_without_reentrant_generator.__name__
"""The name of the function that the checkpoint function calls if checkpointing is non-reentrant."""


def use_counts(tensor: Tensor) -> tuple[int, int]:
    """Return the reference counts of a tensor and its storage; if torch does not tell, other numbers in each call."""
    own = getattr(tensor, "_use_count", None)
    return (next(_OTHERS), 0) if own is None else (own(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


_OTHERS = count()


def function_of(node: Any) -> type[torch.autograd.Function] | None:
    """Return the Python autograd.Function that made a node of the graph; None for all other nodes."""
    return getattr(type(node), "_forward_cls", None)


# dispatch
DispatchKey = torch._C.DispatchKey
DisableTorchDispatch = torch._C._DisableTorchDispatch
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
ExcludeDispatchKey = torch._C._SetExcludeDispatchKeyGuard
IncludeDispatchKey = torch._C._IncludeDispatchKeyGuard
parse_dispatch_key = torch._C._dispatch_key_parse
keys_after = torch._C._dispatch_keyset_full_after
is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
higher_order_operators: Mapping[str, Any] = torch._ops._higher_order_ops
passed_by_higher_order: list[Any] = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
tracing_context: Callable[[], Any] = torch._guards.TracingContext.try_get
disable_current_modes = _python_dispatch._disable_current_modes
dispatch_modes: Callable[[], list[Any]] = _python_dispatch._get_current_dispatch_mode_stack
dispatch_stack_length = torch._C._len_torch_dispatch_stack
make_wrapper_subclass: Callable[..., Any] = Tensor._make_wrapper_subclass

# transforms of torch.func
TransformType = torch._C._functorch.TransformType
transform_stack = torch._C._functorch.get_interpreter_stack
innermost_transform = torch._C._functorch.peek_interpreter_stack


def forward_mode_level() -> int:
    """Return the current level of forward-mode differentiation; -1 if there is none."""
    return int(forward_ad._current_level)


# operators
CPU_ATTENTION = _operator("_scaled_dot_product_flash_attention_for_cpu")
FLASH_ATTENTION = _operator("_scaled_dot_product_flash_attention")
EFFICIENT_ATTENTION = _operator("_scaled_dot_product_efficient_attention")
MATH_ATTENTION = _operator("_scaled_dot_product_attention_math")
GROUPED_MM = _operator("_grouped_mm")
UNSAFE_VIEW = _operator("_unsafe_view")
EXACT_UPSAMPLES = (
    _operator("_upsample_nearest_exact2d"),
    _operator("_upsample_nearest_exact2d_backward"),
    _operator("_upsample_nearest_exact3d"),
)

CALL_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""The attributes of a module that hold the hooks of its calls."""
ATTRIBUTES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Tensor": frozenset(
            {"_backward_hooks", "_base", "_indices", "_is_view", "_post_accumulate_grad_hooks", "_values", "_version"}
        ),
        "UntypedStorage": frozenset({"_cdata"}),
        "Module": frozenset({*CALL_HOOKS, "_buffers", "_compiled_call_impl", "_modules", "_parameters"}),
        "DistributedDataParallel": frozenset({"_comm_hooks"}),
        "OptimizedModule": frozenset({"_orig_mod"}),
        "Node": frozenset({"_sequence_nr"}),
        "OpOverload": frozenset({"_overloadname", "_overloadpacket", "_schema"}),
        "Reducer": frozenset({"_check_reducer_finalized"}),
    }
)
"""The private attributes that are read from objects of torch, by class."""


def kernel_reader(name: str) -> Callable[[], bool]:
    """Return the function that tells whether an attention kernel is allowed: the one in C if there is one."""
    reader: Callable[[], bool] = getattr(
        torch._C, f"_get_{name}_sdp_enabled", getattr(torch.backends.cuda, f"{name}_sdp_enabled")
    )
    return reader


def is_compiled(module: nn.Module) -> bool:
    """Tell whether a module is what torch.compile made, or was compiled in place."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def is_compiled_function(value: object) -> bool:
    """Tell whether a value is a function that torch.compile made."""
    return hasattr(value, "_torchdynamo_orig_callable")


@cache
def skip_frames(code: CodeType) -> None:
    """Have the compiler skip calls of a function, without the wrapper of `torch.compiler.disable`."""
    frames = torch._C._dynamo.eval_frame
    action = frames._FrameAction
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_autocast_available(device: str) -> bool:
    """Tell whether a device type has autocast: the compiler of 2.8 and 2.11 can't trace torch's own function."""
    return torch.amp.is_autocast_available(device)


def default_store() -> Any:
    """Return the store of the default process group."""
    return torch.distributed.distributed_c10d._get_default_store()
