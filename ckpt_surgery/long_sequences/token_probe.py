"""Test whether a module treats each token by itself, on four tokens together, alone and in another order.

The classes of its layers do not tell: a shift, a softmax over the sequence and an attribute that lives from one call
to the next mix tokens as well. A probe leaves nothing behind: buffers, attributes, containers in them and generators
are as they were.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.measure.generators import devices_of, random_state_kept
from ckpt_surgery.runtime.checkpoint.state import BlockState
from ckpt_surgery.runtime.tools.containers import hidden_tensors
from ckpt_surgery.runtime.tools.tensors import version, versions
from ckpt_surgery.text import error_line
from ckpt_surgery.torch_names import CALL_HOOKS, TorchDispatchMode, disable_current_modes

Forward = Callable[[Tensor], Any]
WRITES = (
    "its forward writes into its input or into a buffer, and would do so once for each shard and again in the backward"
)

_TOKENS = 4
_ORDER = (2, 0, 3, 1)  # no token keeps its place or its neighbours

_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}
"""Of results, relative to the largest: a matrix product of one token is rounded differently than one of four."""
_NARROW_TOLERANCE = 2e-2
"""For shorter dtypes, and for float32 off the CPU, where products may be of TF32."""

_CONTAINERS = (list, dict, set, deque, SimpleNamespace)


class CannotTile(SurgeryError):
    """A module cannot be tiled, for the reason `why`; `place` names it."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place} cannot be tiled: {why}; take it out of tile_mlp")
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return SurgeryError, self.args


def probe_tokens(place: str, module: nn.Module, forward: Forward, like: Tensor) -> None:
    """Raise CannotTile if `forward`, which runs `module`, mixes tokens or writes; `place` names the module in it.

    The tokens are like those of `like`, (..., tokens, hidden): of its dtype, device, width and number of dimensions.
    They are drawn here, because real ones may be equal. Random draws are replaced by their means, and hooks of the
    modules inside are off. A forward whose result is not one tensor of the tokens is left to the call itself, and so
    are tensors of other classes. What `forward` raises for `like` itself is raised.
    """
    if type(like) not in (Tensor, nn.Parameter) or not like.is_floating_point() or like.is_meta:
        return
    with ExitStack() as stack:
        stack.enter_context(disable_current_modes())  # modes that count or record operators are to see the call alone
        stack.enter_context(torch.no_grad())
        stack.enter_context(autocast_uncached())
        stack.enter_context(random_state_kept((*devices_of(module), like.device)))
        try:
            with _without_hooks(module):
                mixes = _mixes(place, module, forward, like)
        except CannotTile:
            raise
        except Exception:  # hooks may bring the parameters: try with them
            try:
                mixes = _mixes(place, module, forward, like)
            except CannotTile:
                raise
            except Exception as error:
                with Trial(module).call():
                    forward(like.detach().clone())  # raises what the module raises untiled
                why = f"it runs on {like.shape[-2]} tokens, and not on {_TOKENS} or one ({error_line(error)})"
                raise CannotTile(place, why) from error
    if mixes:
        why = f"it mixes tokens: its results for {_TOKENS} tokens together differ from those for each alone"
        raise CannotTile(place, why)


def _mixes(place: str, module: nn.Module, forward: Forward, like: Tensor) -> bool:
    """Tell whether results for tokens alone, or in another order, differ beyond rounding from those for all together.

    Rounding may make a router choose other experts, but hardly three times in a row. A module that mixes tokens does
    so each time.
    """
    shape = (*(1 for _ in like.shape[:-2]), _TOKENS, like.shape[-1])
    for seed in range(3):
        tokens = torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu")
        if not _differs(place, module, forward, tokens.to(like.device, like.dtype)):
            return False
    return True


def _differs(place: str, module: nn.Module, forward: Forward, tokens: Tensor) -> bool:
    order = list(_ORDER)
    trial = Trial(module)
    with trial.call():
        buffers = list(module.buffers())
        before, given = versions(buffers), tokens.clone()
        together = _result(forward, given)
        if version(given) or versions(buffers) != before:
            raise CannotTile(place, WRITES)
    with trial.call():
        shuffled = _result(forward, tokens[..., order, :].clone())
    with trial.call():  # each alone sees what the one before has left
        alone = [_result(forward, tokens[..., number : number + 1, :].clone()) for number in order]
    results = [result for result in (together, shuffled, *alone) if result is not None]
    if len(results) < 2 + _TOKENS:
        return False
    expected = results[0][..., order, :]
    return not (is_close(results[1], expected) and is_close(torch.cat(results[2:], -2), expected))


def _result(forward: Forward, tokens: Tensor) -> Tensor | None:
    """Return a copy of the result, or None if it is not one tensor with the same leading shape."""
    with MeanDraws():  # type: ignore[no-untyped-call]
        result = forward(tokens)
    return result.clone() if isinstance(result, Tensor) and result.shape[:-1] == tokens.shape[:-1] else None


def is_close(ours: Tensor, theirs: Tensor) -> bool:
    """Tell whether results are the same up to rounding."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    short = ours.device.type != "cpu" and ours.dtype == torch.float32
    tolerance = _NARROW_TOLERANCE if short else _TOLERANCES.get(ours.dtype, _NARROW_TOLERANCE)
    largest = theirs[theirs.isfinite()].abs().max().item() if theirs.isfinite().any() else 0.0
    return torch.allclose(ours, theirs, rtol=0, atol=tolerance * largest, equal_nan=True)


@contextmanager
def autocast_uncached() -> Iterator[None]:
    """Keep autocast from caching the weights that it casts inside: without a graph, they could have no gradient."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """Switch off the hooks of modules inside: they count or collect what they see, and are for real calls."""
    tables = [(vars(part), name, vars(part)[name]) for part in module.modules() for name in CALL_HOOKS]
    for attributes, name, _ in tables:
        attributes[name] = OrderedDict()
    try:
        yield
    finally:
        for attributes, name, table in tables:
            attributes[name] = table


class Trial:
    """Trial calls of a module, each of which sees the original state and leaves nothing."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._state = BlockState(module)
        self._entry = self._state.entry(watching=True)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Let the call inside write to copies, also of the containers that the module keeps."""
        with self._state.as_at_entry(self._entry):
            for module in self._module.modules():
                for name, value in list(vars(module).items()):
                    if isinstance(value, _CONTAINERS) and not name.startswith("_"):
                        graphs = {id(tensor): tensor for tensor in hidden_tensors(value) if tensor.grad_fn is not None}
                        vars(module)[name] = copy.deepcopy(value, graphs)
            yield


class MeanDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which random draws are their means: dropout drops and scales nothing, noise is zero, jitter one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **options)
        name = func.overloadpacket.__name__
        if name in ("native_dropout", "_fused_dropout"):
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if func is torch.ops.aten.bernoulli.default:
            return args[0].clone()
        drawn = func(*args, **options)
        mean = self._mean(name, args[1:], options)
        return drawn if mean is None else drawn.copy_(mean) if isinstance(mean, Tensor) else drawn.fill_(mean)

    def _mean(self, name: str, numbers: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Return the mean of what an operator draws, by its arguments after the first; None if that is not known."""

        def number(place: int, keyword: str, default: float) -> Any:
            return numbers[place] if len(numbers) > place else options.get(keyword, default)

        if name in ("bernoulli", "bernoulli_"):
            return number(0, "p", 0.5)
        if name in ("uniform", "uniform_"):
            return (number(0, "from", 0.0) + number(1, "to", 1.0)) / 2
        if name == "normal_":
            return number(0, "mean", 0.0)
        return {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0}.get(name)
