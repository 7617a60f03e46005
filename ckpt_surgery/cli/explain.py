"""The command `explain`: read the options, run a step of the model on shapes, print what it keeps.

torch and transformers are imported only once the options are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt_surgery.cli.exits import ExitCode, finish, termination_raises
from ckpt_surgery.cli.options import choice_names, choice_of
from ckpt_surgery.cli.released import (
    Batch,
    CountedOptimizer,
    DeviceName,
    Dtype,
    FourBits,
    Fsdp,
    Lora,
    Model,
    Ranks,
    Tokens,
    TrustRemoteCode,
    WeightDtype,
    Zero,
    check_adapters,
    check_own_inputs,
    quiet,
    sharding_of,
    target_named,
)
from ckpt_surgery.cli.terminal import check_writable, progress_bar, say, write_document, write_report
from ckpt_surgery.errors import OptionError
from ckpt_surgery.optional import load_runtime
from ckpt_surgery.planning.training import Optimizer
from ckpt_surgery.text import LINE, percent, plural, size, text_table, wrapped

if TYPE_CHECKING:
    from ckpt_surgery.planning.answer import LeverPeak
    from ckpt_surgery.planning.explanation import Explanation
    from ckpt_surgery.planning.figures import Holder
    from ckpt_surgery.planning.target import ReleasedModel
    from ckpt_surgery.planning.training import TrainingSetup
    from ckpt_surgery.static.results import Progress
    from ckpt_surgery.survey.target import SurveyTarget

_MOST_HOLDERS = 8


class ExplainedSteps(StrEnum):
    """The steps to explain."""

    OFF = "off"
    ON = "on"
    BOTH = "both"


def explain_command(
    model: Model,
    tokens: Tokens = None,
    batch: Batch = None,
    dtype: Dtype = WeightDtype.BF16,
    lora: Lora = None,
    four_bits: FourBits = False,
    checkpointing: Annotated[
        ExplainedSteps,
        typer.Option(
            parser=choice_of(ExplainedSteps), metavar=choice_names(ExplainedSteps), help="Which steps to explain."
        ),
    ] = ExplainedSteps.BOTH,
    offload: Annotated[
        bool, typer.Option("--offload", help="With checkpointing: keep the inputs of blocks in host memory.")
    ] = False,
    for_long_context: Annotated[
        bool,
        typer.Option(
            "--long-context", help="With checkpointing: offloading, tiled MLPs and a fused loss, as with long_context."
        ),
    ] = False,
    host: Annotated[
        bool,
        typer.Option("--host", help="With --long-context: keep queries, keys and values in host memory, too."),
    ] = False,
    save: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With checkpointing: keep the results of operators: attention, matmul:2, ... (repeatable).",
        ),
    ] = None,
    optimizer: CountedOptimizer = Optimizer.ADAMW,
    ranks: Ranks = None,
    fsdp: Fsdp = False,
    zero: Zero = None,
    device: DeviceName = None,
    html: Annotated[
        Path | None, typer.Option("--html", readable=False, metavar="FILE", help="Also write an HTML page with plots.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", readable=False, metavar="FILE", help="Also write the report as JSON.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Show what a training step of a model will keep in memory, and where.

    The step runs on shapes at the model's released size: no weights, no GPU. Only the config.json of a model on the
    Hub is downloaded.
    """

    def body() -> int:
        for option, place in (("--html", html), ("--json", json)):
            if place is not None:
                check_writable(place, option)
        given = {"--save": save, "--offload": offload, "--long-context": for_long_context}
        wanted = [option for option, value in given.items() if value]
        if checkpointing is ExplainedSteps.OFF and wanted:
            raise OptionError(f"{wanted[0]} is for checkpointed steps: leave --checkpointing off out")
        if for_long_context and len(wanted) > 1:
            raise OptionError(f"--long-context decides what is kept and where: leave {wanted[0]} out")
        if host and not for_long_context:
            raise OptionError("--host is for --long-context: give both, or neither")
        check_adapters(lora, four_bits=four_bits)
        load_runtime("explain")
        from ckpt_surgery.planning.training import TrainingSetup
        from ckpt_surgery.runtime.selective.policies import choices_of

        choices_of(save or ())
        training = TrainingSetup.of(optimizer, ranks or 1, sharding_of(fsdp=fsdp, zero=zero), device)
        request = _ExplainRequest(
            model,
            tokens,
            batch,
            dtype,
            lora,
            four_bits,
            checkpointing,
            offload,
            for_long_context,
            host,
            tuple(save or ()),
            training,
            trust_remote_code,
        )
        with termination_raises(), progress_bar() as progress, quiet():
            released, explanations, lever = request.explained(progress)
        write_report(request.lines(released, explanations, lever), None)
        if html is not None:
            from ckpt_surgery.planning.page import explanation_page

            titled = [(f"checkpointing {when}", step) for when, step in explanations.items()]
            write_document(explanation_page(titled, training.device, lever), html)
        if json is not None:
            documents = [f'"checkpointing_{when}": {step.to_json()}' for when, step in explanations.items()]
            write_document(f"{{{', '.join(documents)}}}\n", json)
        return ExitCode.CLEAN

    finish(body, lambda: "nothing was written")


@dataclass(frozen=True, slots=True)
class _ExplainRequest:
    """The request on the command line."""

    name: str
    tokens: int | None
    batch: int | None
    dtype: WeightDtype
    lora: int | None
    four_bits: bool
    steps: ExplainedSteps
    offload: bool
    for_long_context: bool
    host: bool
    save: tuple[str, ...]
    training: TrainingSetup
    trust_remote_code: bool

    def explained(
        self, progress: Progress | None
    ) -> tuple[ReleasedModel, dict[ExplainedSteps, Explanation], LeverPeak | None]:
        """Return the model, its explanation for each step asked for, and the peak with the best lever."""

        def show(step: str, done: int) -> None:
            if progress is not None:
                progress(step, done, total)

        total = 4 if self.steps is ExplainedSteps.BOTH else 3
        show("importing", 0)
        from ckpt_surgery.errors import NotOnShapes
        from ckpt_surgery.planning.scaled import explain_scaled
        from ckpt_surgery.planning.target import DTYPES

        target = target_named(self.name, trust_remote_code=self.trust_remote_code)
        show("building the model", 0)
        try:
            released, explanations = self._on_shapes(target, show, total)
        except NotOnShapes as why:
            if self.lora or self.offload or self.save or self.for_long_context:
                raise
            show("a tiny model with data", 1)
            found, off, on = explain_scaled(
                target,
                why,
                tokens=self.tokens,
                batch=self.batch or 1,
                dtype=DTYPES[self.dtype],
                training=self.training,
            )
            both = {ExplainedSteps.OFF: off, ExplainedSteps.ON: on}
            wanted = {when: step for when, step in both.items() if self.steps in (when, ExplainedSteps.BOTH)}
            return found, wanted, None
        if self.steps is not ExplainedSteps.ON and ExplainedSteps.OFF not in explanations:
            say(f"ckpt_surgery: {self.name} returns a model that is checkpointed already: it is explained as it is")
        return released, explanations, self._with_best_lever(target, explanations, show, total)

    def _with_best_lever(
        self,
        target: SurveyTarget,
        explanations: dict[ExplainedSteps, Explanation],
        show: Callable[[str, int], None],
        total: int,
    ) -> LeverPeak | None:
        """Return the peak of the last step with the lever on parameters and states that may have the most effect."""
        from ckpt_surgery.planning.answer import RANK, LeverPeak, StateLever

        lever = StateLever.of(list(explanations.values()))
        if lever is None:
            return None
        show(f"a step with {lever}", total - 1)
        last = list(explanations)[-1]
        changed = replace(self, lora=RANK) if lever is StateLever.LORA else replace(self, four_bits=True)
        with suppress(Exception):  # a model that cannot run with the lever just gets no such advice
            _, with_lever = replace(changed, steps=last)._on_shapes(target, lambda step, done: None, total)
            return LeverPeak(lever, 1, with_lever[last].peak_bytes)
        return None

    def _on_shapes(
        self, target: SurveyTarget, show: Callable[[str, int], None], total: int
    ) -> tuple[ReleasedModel, dict[ExplainedSteps, Explanation]]:
        """Return the model and its explanations, from steps on shapes. Raises PlanningError."""
        from ckpt_surgery.errors import SurgeryError
        from ckpt_surgery.guarding.asked_options import is_asked
        from ckpt_surgery.measure.surgical_blocks import has_surgery
        from ckpt_surgery.planning.lora import add_lora
        from ckpt_surgery.planning.target import DTYPES, ReleasedModel

        found = ReleasedModel.of(target, tokens=self.tokens, batch=self.batch or 1, dtype=DTYPES[self.dtype])
        check_own_inputs(found, self.tokens, self.batch)
        if self.lora:
            add_lora(found.model, self.lora, found.shapes, four_bits=self.four_bits)
        explanations = {}
        if has_surgery(found.model) or is_asked(found.model):
            if self.save or self.offload or self.for_long_context:
                raise OptionError(
                    f"{self.name} returns a model that is checkpointed already: --save, --offload and --long-context "
                    "are for one that is not"
                )
            return found, {ExplainedSteps.ON: found.explained(self.training)}
        if self.steps is not ExplainedSteps.ON:
            show("a step", 1)
            explanations[ExplainedSteps.OFF] = found.explained(self.training)
        if self.steps is not ExplainedSteps.OFF:
            show("a checkpointed step", total - 2)
            try:
                found.wrap(
                    offload=self.offload,
                    save=self.save,
                    for_long_context=self.for_long_context,
                    host=self.host,
                )
            except SurgeryError as error:
                if not explanations:
                    raise
                say(f"ckpt_surgery: with checkpointing off alone: {error}")
            else:
                explanations[ExplainedSteps.ON] = found.explained(self.training)
        return found, explanations

    def lines(
        self,
        released: ReleasedModel,
        explanations: dict[ExplainedSteps, Explanation],
        lever: LeverPeak | None,
    ) -> list[str]:
        """Return the answer, the table of figures and what is kept, as lines of text."""
        from ckpt_surgery.planning.answer import answer_line
        from ckpt_surgery.planning.text import Hint, beside_rows, caveats, saved_words

        any_one, training = next(iter(explanations.values())), self.training
        text = f" of {plural(released.tokens, 'token')}" if released.tokens else ""
        inputs = "its own inputs" if released.has_own_inputs else f"{plural(self.batch or 1, 'sample')}{text}"
        peaks = [step.peak for step in explanations.values()]
        state = f"optimizer ({self.training.optimizer})"
        lora = f", adapters of rank {self.lora}" if self.lora else ""
        lora += " on layers of 4 bits" if self.four_bits else ""
        offload = ", block inputs in host memory" if self.offload else ""
        if self.for_long_context:
            offload += ", as with long_context(host=True)" if self.host else ", as with long_context"
        ranks = f", one of {training.ranks} ranks ({training.sharding})" if training.sharding else ""
        rows: list[tuple[str, list[str]]] = [
            ("parameters", [size(step.parameter_bytes) for step in explanations.values()]),
            ("gradients", [size(step.gradient_bytes) for step in explanations.values()]),
            (state, [size(step.optimizer_bytes) for step in explanations.values()]),
            *((name, [held] * len(explanations)) for name, held in beside_rows(any_one)),
            ("kept for the backward", [size(step.kept_bytes) for step in explanations.values()]),
            *([("of that by save", [saved_words(step.saved) for step in explanations.values()])] if self.save else []),
            ("peak", [size(step.peak_bytes) for step in explanations.values()]),
            ("peak in", [" ".join(filter(None, [f"the {p.phase},", p.module or "loss", p.line])) for p in peaks]),
        ]
        if training.device:
            rows.append(
                (f"least time ({training.device.name})", [f"{step.seconds:.3g} s" for step in explanations.values()])
            )
        lines = [
            *wrapped(answer_line(list(explanations.values()), training.device, lever), LINE),
            "",
            f"{any_one.model}: {inputs}, {self.dtype}, attention: {released.attention}, "
            f"{plural(any_one.blocks, 'block')}{lora}{offload}{ranks}",
            *(
                line
                for caveat in caveats(max(explanations.values(), key=lambda step: step.drawn))
                for line in wrapped(caveat, LINE)
            ),
            *text_table(
                ["", *(f"checkpointing {when}" for when in explanations)], [[name, *row] for name, row in rows]
            ),
        ]
        for when, step in explanations.items():
            lines += ["", f"Kept with checkpointing {when}:", *_holder_lines(step.holders, step.kept_bytes)]
            lines += [hint.sentence(step) for hint in Hint.of(step)]
        return lines


def _holder_lines(holders: Sequence[Holder], total: int) -> list[str]:
    rows = [
        [
            size(holder.bytes),
            percent(holder.bytes / total if total else None),
            holder.module or "loss",
            f"{holder.operator.removeprefix('aten.')} {holder.line}".strip(),
            f"{holder.count} x {holder.dtype} {'x'.join(map(str, holder.shape))}",
        ]
        for holder in holders[:_MOST_HOLDERS]
    ]
    return text_table(["bytes", "share", "module", "made by", "tensors"], rows, right="bytes")
