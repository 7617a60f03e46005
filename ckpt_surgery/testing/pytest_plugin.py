"""The pytest plugin: a fixture, and one test per model class and mode for `--ckpt-models`.

This imports neither torch nor transformers: models are built and verified in worker processes, as by the command
`verify`, so that one that crashes or hangs does not stop the run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from ckpt_surgery.errors import MissingPackageError
from ckpt_surgery.measure import TIMEOUT, TIMEOUT_HELP
from ckpt_surgery.optional import need_runtime

if TYPE_CHECKING:
    from ckpt_surgery.measure.report import Report
    from ckpt_surgery.measure.results import Mode, ModeReport
    from ckpt_surgery.survey.target import SurveyTarget
    from ckpt_surgery.survey.worker_pool import WorkerPool

_NAME = "ckpt"
_OPTION = "--ckpt-models"
_WORKER_KEY = "ckpt_models"


@pytest.fixture
def verify_checkpointing() -> Callable[..., Report]:
    """`verify_checkpointing(model, inputs, **options)` fails unless checkpointing works, and returns the report.

    The options are those of `ckpt_surgery.verify`.
    """
    from ckpt_surgery.testing.assertions import assert_checkpointing

    return assert_checkpointing


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--ckpt-models`, `--ckpt-device` and `--ckpt-timeout`."""
    group = parser.getgroup("ckpt_surgery", "gradient checkpointing")
    group.addoption(
        _OPTION,
        metavar="MODELS",
        help="verify gradient checkpointing, one test per class and mode: model types, classes, config.json files "
        "or FILE.py:factory, separated by commas, or `all`. Test files run only if they are named too.",
    )
    group.addoption(
        "--ckpt-device", default="", metavar="DEVICE", help="where the models run, such as cuda (default: the CPU)"
    )
    group.addoption("--ckpt-timeout", type=float, default=TIMEOUT, metavar="SECONDS", help=TIMEOUT_HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Resolve `--ckpt-models`, or, in a worker of xdist, take the targets that the controller resolved."""
    names = config.getoption(_OPTION)
    if names is None:
        return
    from ckpt_surgery.survey.target import TargetError, checked_timeout

    try:
        timeout = checked_timeout(config.getoption("--ckpt-timeout"))
    except TargetError as error:
        raise pytest.UsageError(f"--ckpt-timeout {error}") from None
    models = _Models(timeout, config.getoption("--ckpt-device"))
    config.add_cleanup(models.close)
    selection = getattr(config, "workerinput", {}).get(_WORKER_KEY)
    if selection is None:
        models_only = config.args_source is not pytest.Config.ArgsSource.ARGS
        selection = {"targets": models.resolve(names), "models_only": models_only}
    models.selection = selection
    if selection["models_only"]:
        config.args = []
    config.pluginmanager.register(models, "ckpt_surgery-models")


@dataclass(eq=False)  # pluggy puts plugins into sets
class _Models:
    """The plugin behind `--ckpt-models`, which collects the tests and verifies their models.

    `selection` is plain data, as xdist sends it to workers: the targets, and whether test files are left out.
    """

    timeout: float
    device: str = ""
    selection: dict[str, Any] = field(default_factory=dict)
    _pool: WorkerPool | None = None
    _reports: dict[tuple[SurveyTarget, Mode], Report] = field(default_factory=dict)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the selection to a worker of xdist, so that all collect the same tests; this process runs none."""
        node.workerinput[_WORKER_KEY] = self.selection
        self.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Add the models to the collected test files."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            report.result = [*report.result, ModelCollector.from_parent(collector, name=_NAME, models=self)]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Have both modes verified at once if the next test is of the same model, so that it is built only once."""
        if isinstance(item, ModelItem):
            item.modes = (item.mode,)
            if isinstance(nextitem, ModelItem) and nextitem.target == item.target:
                item.modes += (nextitem.mode,)

    def resolve(self, value: str) -> list[dict[str, Any]]:
        """Return the targets named by the option's value, as plain data. Raises UsageError if a name is unknown."""
        from ckpt_surgery.survey.resolve import resolve_in
        from ckpt_surgery.survey.target import TargetError
        from ckpt_surgery.survey.worker_pool import WorkerPoolError

        names = [name for entry in value.split(",") if (name := entry.strip())]
        if not names:
            raise pytest.UsageError(f"{_OPTION} is empty: give model types or classes separated by commas, or `all`")
        options: dict[str, Any] = {"names": [name for name in names if name != "all"], "everything": "all" in names}
        options |= {"device": self.device}
        try:
            need_runtime(_OPTION)
            return [target.to_dict() for target in resolve_in(self.pool(), **options)]
        except MissingPackageError as error:
            raise pytest.UsageError(str(error)) from None
        except (WorkerPoolError, TargetError) as error:
            raise pytest.UsageError(f"{_OPTION}: {error}") from None

    def pool(self) -> WorkerPool:
        """Return the pool of worker processes, started at first use."""
        if self._pool is None:
            from ckpt_surgery.survey.worker_pool import WorkerPool

            self._pool = WorkerPool()
        return self._pool

    def report(self, target: SurveyTarget, mode: Mode, modes: tuple[Mode, ...]) -> Report:
        """Return a report that covers `mode` of a target; one made now covers `modes`, and is kept for these."""
        if (target, mode) not in self._reports:
            from ckpt_surgery.survey import survey

            (report,) = survey(
                [target], modes=modes, workers=1, timeout=self.timeout, pool=self.pool(), device=self.device
            )
            self._reports |= {(target, covered): report for covered in modes}
        return self._reports.pop((target, mode))

    def close(self) -> None:
        """Stop the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class ModelCollector(pytest.Collector):
    """All models that `--ckpt-models` names. It belongs to no file."""

    def __init__(self, models: _Models, **node_options: Any) -> None:
        super().__init__(nodeid=_NAME, **node_options)
        self.models = models

    def collect(self) -> Iterator[ModelItem]:
        """Make one test per class and mode; the modes of a class are neighbours, so that it is built only once."""
        from ckpt_surgery.measure.results import MODES
        from ckpt_surgery.survey.target import SurveyTarget

        targets = [SurveyTarget.of(data) for data in self.models.selection["targets"]]
        names = [f"{target.model}/{target.variant}" for target in targets]
        for target, name in zip(targets, names, strict=True):
            source = target.argument if names.count(name) > 1 else ""
            for mode in MODES:
                case = "-".join(filter(None, [target.variant.replace(" ", "_"), source, mode]))
                yield ModelItem.from_parent(
                    self, name=f"{target.model}[{case}]", models=self.models, target=target, mode=mode
                )


class ModelItem(pytest.Item):
    """The test that checkpointing works on one model class in one mode."""

    def __init__(self, models: _Models, target: SurveyTarget, mode: Mode, **node_options: Any) -> None:
        super().__init__(**node_options)
        self.models, self.target, self.mode = models, target, mode
        self.modes: tuple[Mode, ...] = (mode,)

    def runtest(self) -> None:
        """Verify the model: fail with the report, or skip with the reason if there is no verdict."""
        report = self.models.report(self.target, self.mode, self.modes)
        mode_report: ModeReport | None = next((m for m in report.modes if m.mode == self.mode), None)
        if not report.supported:
            pytest.skip(report.problem or f"{report.label} says that it does not support gradient checkpointing")
        if mode_report is None:
            pytest.skip(report.why_no_verdict)
        if mode_report.status == "skipped":
            pytest.skip("; ".join(skip.reason for skip in mode_report.skips))
        if mode_report.wrong:
            seconds = {name: duration for name, duration in report.seconds.items() if name not in self.modes}
            raise _CheckpointingFailure(replace(report, modes=(mode_report,), seconds=seconds))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the report without a traceback, which would only show this file."""
        if isinstance(excinfo.value, _CheckpointingFailure):
            # the rules and failed levels come first: pytest repeats that line in its summary
            report = excinfo.value.report
            verdicts = ", ".join(mode.verdict for mode in report.modes)
            return f"{' '.join([*report.rules, verdicts])}\n\n{report}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return a location that is in no file."""
        return self.config.rootpath / _NAME, 0, self.name


class _CheckpointingFailure(Exception):
    """Checkpointing does not work; `report` has the one mode of the test."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report
