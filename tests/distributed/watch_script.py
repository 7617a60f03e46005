"""Losses on real ranks that bypass DistributedDataParallel, and losses that do not, for `test_ddp`.

Every scenario trains a little with a watch, whose report is compared with the truth: whether the gradients are the
same on all ranks afterwards.
"""

from __future__ import annotations

import gc
import io
import random
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.distributed.ddp import DDPWatch, call_through_ddp, watch_ddp
from ckpt_surgery.errors import DistributedError, DistributedWarning
from tests.rank_cases import own_group, run_cases

SIZE = 2
STEPS = 6
ROUNDS = 20
SECONDS = 3
"""The seconds after which a group breaks that one rank leaves."""

Scenario = Callable[["Training"], None]


@dataclass
class Outputs:
    """A class that torch's own tools do not look into."""

    loss: Tensor
    logits: Tensor
    hidden: Tensor
    scale: Tensor


class Model(nn.Module):
    """Two blocks, perhaps checkpointed, and a head; the last loss is kept."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.opaque = self.headless = False
        torch.manual_seed(0)
        self.embed = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 2)
        self.reentrant = reentrant
        self.last_loss = torch.zeros(())
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, values: Tensor) -> Any:
        if self.headless:
            return {"hidden": self.compute_hidden(values)}
        loss, logits = self.compute_loss(values)
        self.last_loss = loss
        outputs = {"loss": loss, "logits": logits, "hidden": self.last_hidden, "scale": self.head.bias}
        return Outputs(**outputs) if self.opaque else outputs

    def compute_loss(self, values: Tensor) -> tuple[Tensor, Tensor]:
        self.last_hidden = self.compute_hidden(values)
        logits = self.head(self.last_hidden)
        return logits.square().mean(), logits

    def compute_hidden(self, values: Tensor) -> Tensor:
        values = self.embed(values)
        for block in self.blocks:
            plain = self.reentrant is None
            values = block(values) if plain else checkpoint(block, values, use_reentrant=bool(self.reentrant))
        return values.tanh()

    def fails(self, values: Tensor) -> Tensor:
        raise KeyError("no such batch")


class Training:
    """One model under DistributedDataParallel, with an optimizer and a watch."""

    def __init__(
        self,
        *,
        reentrant: bool | None = None,
        when: Literal["backward", "step"] = "backward",
        action: Literal["warn", "raise"] = "warn",
        **ddp: Any,
    ) -> None:
        self.model = Model(reentrant)
        self.ddp = DistributedDataParallel(self.model, **ddp)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.watch: DDPWatch = watch_ddp(self.ddp, self.optimizer, when=when, action=action)
        self.generator = torch.Generator().manual_seed(dist.get_rank())

    def batch(self) -> Tensor:
        return torch.randn(3, 4, generator=self.generator)

    def loss(self) -> Tensor:
        loss: Tensor = self.ddp(self.batch())["loss"]
        return loss

    def bypass(self) -> Tensor:
        loss: Tensor = self.model(self.batch())["loss"]
        return loss

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def equal(self) -> bool:
        """Tell whether every gradient is the same on all ranks."""
        gathered: list[Any] = [None] * SIZE
        own = [None if p.grad is None else p.grad.tolist() for p in self.model.parameters()]
        dist.all_gather_object(gathered, own)
        return bool(gathered[0] == gathered[1])


def backward(loss: Tensor, **options: Any) -> None:
    loss.backward(**options)  # type: ignore[no-untyped-call]


def plain(training: Training) -> None:
    for _ in range(3):
        training.step()
        backward(training.loss())


def ignored_outputs(training: Training) -> None:
    training.ddp(training.batch())
    backward(training.model.last_loss)


def metrics_before(training: Training) -> None:
    """Run a forward whose outputs go unused, then the inner model: DDP still averages."""
    training.loss()
    backward(training.bypass())


def two_forwards(training: Training) -> None:
    backward(training.loss() + training.loss())


def accumulated(training: Training) -> None:
    for _ in range(2):
        with training.ddp.no_sync():
            backward(training.loss())
    backward(training.loss())


def accumulated_together(training: Training) -> None:
    with training.ddp.no_sync():
        first, second = training.loss(), training.loss()
        backward(first + second)
        backward(training.loss())
    backward(training.loss())


def local_steps(training: Training) -> None:
    """Step between two averages, as the user wants: no fault, though the gradients differ."""
    with training.ddp.no_sync():
        for _ in range(2):
            backward(training.loss())
            training.optimizer.step()


def evaluation(training: Training) -> None:
    training.ddp.eval()
    with torch.no_grad():
        training.ddp(training.batch())
        training.model(training.batch())
    training.ddp.train()  # type: ignore[no-untyped-call]
    backward(training.loss())


def through(training: Training) -> None:
    backward(call_through_ddp(training.ddp, "compute_loss", training.batch())[0])


def bypassed(training: Training) -> None:
    backward(training.bypass())


def bypassed_in_part(training: Training) -> None:
    backward(training.model.head(training.batch()).sum())


def bypassed_afterwards(training: Training) -> None:
    backward(training.loss())
    backward(training.bypass())


def bypassed_after_accumulation(training: Training) -> None:
    with training.ddp.no_sync():
        backward(training.loss())
        backward(training.loss())
    backward(training.bypass())


def bypassed_after_an_unused_forward(training: Training) -> None:
    """Bypass the wrapper after a forward under no_sync whose backward never came: it no longer excuses."""
    with training.ddp.no_sync():
        training.loss()
    backward(training.loss())
    backward(training.bypass())


def bypassed_after_a_step(training: Training) -> None:
    """Bypass the wrapper after a step: an unused forward before it is no excuse."""
    with training.ddp.no_sync():
        training.loss()
    training.step()
    backward(training.bypass())


def bypassed_after_evaluation(training: Training) -> None:
    with torch.no_grad():
        training.ddp(training.batch())
    backward(training.bypass())


def second_backward(training: Training) -> None:
    first, second = training.loss(), training.loss()
    backward(first)
    backward(second)


def head_outside(training: Training) -> None:
    """Call the head on the outputs: its gradients come before those of the outputs."""
    backward(training.model.head(training.ddp(training.batch())["hidden"]).sum())


HARMLESS: dict[str, Scenario] = {
    "plain": plain,
    "ignored outputs": ignored_outputs,
    "metrics before": metrics_before,
    "two forwards": two_forwards,
    "accumulated": accumulated,
    "accumulated together": accumulated_together,
    "evaluation": evaluation,
    "through": through,
    "head outside": head_outside,
}
WRONG: dict[str, Scenario] = {
    "bypassed": bypassed,
    "bypassed in part": bypassed_in_part,
    "bypassed afterwards": bypassed_afterwards,
    "bypassed after accumulation": bypassed_after_accumulation,
    "bypassed after an unused forward": bypassed_after_an_unused_forward,
    "bypassed after a step": bypassed_after_a_step,
    "bypassed after evaluation": bypassed_after_evaluation,
    "second backward": second_backward,
}
KINDS: dict[str, dict[str, Any]] = {
    "plain model": {},
    "non-reentrant": {"reentrant": False},
    "reentrant": {"reentrant": True},
    "unused parameters": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
    "static graph, reentrant": {"static_graph": True, "reentrant": True},
}
BREAKS_DDP = {
    "reentrant": {"two forwards"},
    "static graph": {"accumulated", "accumulated together"},
}
"""Scenarios that DDP or reentrant checkpointing cannot do, by name."""


def scenarios(kind: str) -> dict[str, Scenario]:
    broken = {name for word, names in BREAKS_DDP.items() if word in kind.split(", ") for name in names}
    return {name: scenario for name, scenario in (HARMLESS | WRONG).items() if name not in broken}


def watched(
    scenario: Scenario,
    afterwards: Scenario | None = None,
    *,
    warm: bool = True,
    ways: Mapping[str, bool] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run a scenario, and a step if steps are watched; return what the watch said, and whether it was right.

    A static graph is trained once before, if `warm`. `ways` are attributes of the model. `early` counts what was
    noticed before `afterwards` and the step.
    """
    training = Training(**options)
    vars(training.model).update(ways or {})
    early, error = 0, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if warm and options.get("static_graph"):
            backward(training.loss())
            training.step()
        try:
            scenario(training)
            early = training.watch.bypassed
            if afterwards:
                afterwards(training)
            if options.get("when") == "step":
                training.optimizer.step()
        except DistributedError as raised:
            error = str(raised)
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, DistributedWarning)]
    return {
        "bypassed": training.watch.bypassed,
        "texts": texts,
        "equal": training.equal(),
        "early": early,
        "error": error,
    }


def random_steps() -> list[str]:
    """Run forwards and backwards in random order, and check the watch after each backward.

    All ranks do the same. Return what differs from the truth.
    """
    wrong = []
    for seed in range(ROUNDS):
        choose = random.Random(seed)
        training = Training(reentrant=choose.choice([None, False]))
        waiting: list[tuple[str, Tensor]] = []
        done: list[str] = []
        for _ in range(STEPS):
            kind = choose.choice(["loss", "no_sync", "bypass", "ignored"])
            with training.ddp.no_sync() if kind == "no_sync" else nullcontext():
                loss = training.bypass() if kind == "bypass" else training.loss()
            if kind != "ignored":
                waiting.append((kind, loss))
            done.append(kind)
            if waiting and choose.random() < 0.7:
                chosen = [waiting.pop() for _ in range(choose.randint(1, len(waiting)))]
                done.append("backward of " + "+".join(kind for kind, _ in chosen))
                training.optimizer.zero_grad()
                before = training.watch.bypassed
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    backward(torch.stack([loss for _, loss in chosen]).sum())
                alarm = training.watch.bypassed > before
                harmless = training.equal() or any(kind == "no_sync" for kind, _ in chosen + waiting)
                if alarm == harmless:
                    wrong.append(f"seed {seed}: {', '.join(done)}: {'false alarm' if alarm else 'not noticed'}")
                if choose.random() < 0.5:
                    training.step()
                    waiting.clear()  # the weights that they were computed with are gone
    return wrong


def accumulated_only(training: Training) -> None:
    with training.ddp.no_sync():
        for _ in range(2):
            backward(training.loss())


def averaged_before(training: Training) -> None:
    """End an epoch in the middle of an accumulation."""
    accumulated(training)
    training.step()
    accumulated_only(training)


def unfinished(training: Training) -> None:
    """Train a parameter that no loss reaches, unknown to DDP: each rank steps on its own gradients."""
    backward(training.ddp(training.batch())["hidden"].sum())


def other_parameters() -> list[int]:
    """Watch one optimizer while another's parameters are reached, then its own; then take a sparse gradient."""
    training = Training(when="step")
    training.watch.undo()
    head = torch.optim.SGD(training.model.head.parameters(), lr=0.1)
    messages = []
    with warnings.catch_warnings(), watch_ddp(training.ddp, head, when="step") as watch:
        warnings.simplefilter("ignore")
        backward(training.model.embed(training.batch()).sum())
        head.step()
        messages.append(watch.bypassed)
        backward(training.bypass())
        head.step()
        messages.append(watch.bypassed)
    table = DistributedDataParallel(nn.Embedding(4, 2, sparse=True))
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with warnings.catch_warnings(), watch_ddp(table, optimizer, when="step") as watch:
        warnings.simplefilter("ignore")
        backward(table.module(torch.tensor([1])).sum())
        optimizer.step()
        messages.append(watch.bypassed)
    return messages


def copied() -> bool:
    """Copy and save a watched model; the copy has no watch."""
    training = Training()
    copy = deepcopy(training.ddp.module)
    torch.save(training.ddp, io.BytesIO())
    return not any(getattr(p, "_post_accumulate_grad_hooks", None) for p in copy.parameters())


def removed() -> dict[str, Any]:
    """Undo a watch: nothing is left of it."""
    training = Training()
    training.watch.undo()
    training.watch.undo()
    backward(training.bypass())
    training.optimizer.step()
    hooks = [len(getattr(p, "_post_accumulate_grad_hooks", None) or {}) for p in training.model.parameters()]
    left = len(training.ddp._forward_hooks) + len(training.optimizer._optimizer_step_pre_hooks) + sum(hooks)
    return {"bypassed": training.watch.bypassed, "left": left}


def accelerated() -> int:
    """Watch an optimizer inside accelerate's."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    training = Training()
    training.watch.undo()
    optimizer = Accelerator(cpu=True).prepare_optimizer(training.optimizer)
    watch = watch_ddp(training.ddp, optimizer, when="step")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backward(training.bypass())
        optimizer.step()
    return watch.bypassed


def called_through(**options: Any) -> dict[str, Any]:
    """Return a method's gradients through the wrapper, beside those of its forward on the same batches."""
    training, reference = Training(**options), Training(**options)
    for _ in range(2):
        batch = training.batch()
        training.ddp.zero_grad()
        reference.ddp.zero_grad()
        loss, logits = call_through_ddp(training.ddp, "compute_loss", batch)
        if options.get("find_unused_parameters"):
            loss = loss + 0 * logits.sum()
        backward(loss)
        backward(reference.ddp(batch)["loss"])
    pairs = zip(training.model.parameters(), reference.model.parameters(), strict=True)
    function = call_through_ddp(training.ddp, lambda model, factor: model.head.weight.sum() * factor, factor=3.0)
    return {
        "equal": training.equal(),
        "same": all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs),  # type: ignore[arg-type]
        "function": torch.equal(function, training.model.head.weight.sum() * 3),
        "keys": list(training.ddp.state_dict()) == list(reference.ddp.state_dict()),
    }


def called_in_part(function: Callable[[Training], None], **options: Any) -> dict[str, Any]:
    """Return the error of a loss from a part of the model through the wrapper, and what it leaves behind."""
    training, error = Training(**options), ""
    training.watch.undo()
    try:
        function(training)
    except DistributedError as raised:
        error = str(raised)
    hooks = [len(getattr(p, "_post_accumulate_grad_hooks", None) or {}) for p in training.model.parameters()]
    return {"error": error, "equal": training.equal(), "hooks": sum(hooks)}


def hidden_of(training: Training) -> Tensor:
    hidden: Tensor = call_through_ddp(training.ddp, "compute_hidden", training.batch())
    return hidden


def part(training: Training) -> None:
    backward(hidden_of(training).sum())


def part_under_no_sync(training: Training) -> None:
    with training.ddp.no_sync():
        part(training)
    training.ddp.zero_grad()


def part_and_head_outside(training: Training) -> None:
    backward(training.model.head(hidden_of(training)).sum())


def one_rank_raises() -> dict[str, Any]:
    """Raise in the method on rank 1 and go on; time rank 0's backward, and return its error."""
    with own_group(SECONDS) as group:
        ddp, batch = DistributedDataParallel(Model(), process_group=group), torch.ones(3, 4)
        begin, error = perf_counter(), ""
        try:
            if dist.get_rank() == 1:
                call_through_ddp(ddp, "fails", batch)
            backward(call_through_ddp(ddp, "compute_loss", batch)[0])
        except (KeyError, RuntimeError) as raised:
            error = type(raised).__name__
        waited = perf_counter() - begin
        dist.barrier()
        del ddp
        gc.collect()
    return {"error": error, "seconds": waited}


def refuse(module: nn.Module, inputs: Any) -> None:
    raise KeyError("refused before the method")


def called_and_raising() -> dict[str, Any]:
    """Call a method that raises, and one that is missing: both leave the wrapper as it was."""
    training = Training()
    keys, inner, seen = list(training.ddp.state_dict()), training.ddp.module, []
    for method in ("fails", "not_there", "reentrant"):
        try:
            call_through_ddp(training.ddp, method, training.batch())
        except (KeyError, DistributedError) as error:
            seen.append(f"{type(error).__name__}: {error}")
    handle = training.ddp.register_forward_pre_hook(refuse)
    try:
        call_through_ddp(training.ddp, "compute_loss", training.batch())
    except KeyError as error:
        seen.append(str(error))
    handle.remove()
    backward(training.loss())
    whole = training.ddp.module is inner and list(training.ddp.state_dict()) == keys
    return {"errors": seen, "whole": whole, "equal": training.equal(), "bypassed": training.watch.bypassed}


def bad_input() -> list[str]:
    """Watch what cannot be watched."""
    training = Training()
    messages = []
    expected: list[dict[str, Any]] = [{"when": "step"}, {"when": "never"}, {"action": "shout"}]
    for options in expected:
        try:
            watch_ddp(training.ddp, **options)
        except DistributedError as error:
            messages.append(str(error))
    try:
        watch_ddp(cast(nn.Module, torch.compile(training.ddp)))
    except DistributedError as error:
        messages.append(str(error))
    return messages


def seen_from_inside() -> list[bool]:
    """Look at the wrapper from the method and from hooks, which see it whole; the model's own hooks do not run."""
    training = Training()
    training.model.eval()
    keys = list(training.ddp.state_dict())
    seen: list[bool] = []

    def look(ddp: nn.Module, inputs: Any) -> None:
        inner: Any = ddp.module
        seen.extend([list(ddp.state_dict()) == keys, isinstance(inner.head, nn.Linear), not inner.training])

    training.model.register_forward_hook(out_of_place)
    training.ddp.register_forward_pre_hook(look)
    whole = call_through_ddp(training.ddp, lambda model: training.ddp.module is model)
    return [whole, *seen]


def out_of_place(*_: object) -> None:
    raise AssertionError("the hooks of the model are for its own forward")


def another_step(training: Training) -> None:
    training.optimizer.step()


STEPS_WATCHED: dict[str, tuple[Scenario, ...]] = {
    "bypassed": (bypassed,),
    "bypassed in part": (bypassed_in_part,),
    "bypassed after accumulation": (bypassed_after_accumulation,),
    "twice": (bypassed, another_step),
    "averaged later": (bypassed, lambda training: backward(training.loss())),
    "dropped": (bypassed, lambda training: training.optimizer.zero_grad()),
    "zeroed": (bypassed, lambda training: training.optimizer.zero_grad(set_to_none=False)),
    "accumulated": (accumulated,),
    "local steps": (local_steps,),
    "accumulated only": (accumulated_only,),
    "averaged before": (averaged_before,),
    "accumulated only, twice": (accumulated_only, another_step),
}
CASES: dict[str, Callable[[], Any]] = {
    **{
        f"{name}, {kind}": partial(watched, scenario, **options)
        for kind, options in KINDS.items()
        for name, scenario in scenarios(kind).items()
    },
    "local steps": partial(watched, local_steps),
    **{
        f"static graph, {name} first": partial(watched, scenario, warm=False, static_graph=True, ways=ways)
        for name, scenario, ways in (
            ("plain", lambda training: backward(training.loss()), {}),
            ("bypassed", bypassed, {}),
            ("head outside", head_outside, {"headless": True}),
            ("opaque", lambda training: backward(training.ddp(training.batch()).loss), {"opaque": True}),
            ("metrics", metrics_before, {}),
        )
    },
    **{f"step, {name}": partial(watched, *scenarios, when="step") for name, scenarios in STEPS_WATCHED.items()},
    "step, unfinished": partial(watched, unfinished, when="step"),
    "random": random_steps,
    "raise in the backward": partial(watched, bypassed, action="raise"),
    "raise in the step": partial(watched, bypassed, action="raise", when="step"),
    "raise after the average": partial(watched, second_backward, action="raise"),
    "raise not": partial(watched, plain, action="raise"),
    "other parameters": other_parameters,
    "copied": copied,
    "removed": removed,
    "accelerated": accelerated,
    "called through": called_through,
    "called through, reentrant": partial(called_through, reentrant=False),
    "called through, unused parameters": partial(called_through, find_unused_parameters=True),
    "called through, static graph": partial(called_through, static_graph=True),
    "part": partial(called_in_part, part),
    "part, reentrant": partial(called_in_part, part, reentrant=True),
    "part, unused parameters": partial(called_in_part, part, find_unused_parameters=True),
    "part, static graph": partial(called_in_part, part, static_graph=True),
    "part, no_sync": partial(called_in_part, part_under_no_sync),
    "part, head outside": partial(called_in_part, part_and_head_outside),
    "one rank raises": one_rank_raises,
    "called and raising": called_and_raising,
    "bad input": bad_input,
    "seen from inside": seen_from_inside,
}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1], SIZE)
