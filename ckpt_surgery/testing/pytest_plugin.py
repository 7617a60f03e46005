"""The pytest plugin: a fixture, and one test per model class and mode for `--ckpt-models`.

Imports neither torch nor transformers: models are built and examined in worker processes, as the command `verify`
does it. A model that crashes, or never ends, is one failed test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
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
_HANDED_ON = "ckpt_models"


@pytest.fixture
def verify_checkpointing() -> Callable[..., Report]:
    """`verify_checkpointing(model, inputs, **options)` fails unless checkpointing works; it gives the report.

    The options are those of `ckpt_surgery.verify`.
    """
    from ckpt_surgery.testing.assertions import assert_checkpointing

    return assert_checkpointing


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ckpt_surgery", "gradient checkpointing")
    group.addoption(
        _OPTION,
        metavar="MODELS",
        help="verify gradient checkpointing, one test per class and mode: model types, classes, config.json files, "
        "package.module:factory, with commas, or `all`. Test files run too where the command line names some.",
    )
    group.addoption(
        "--ckpt-timeout",
        type=float,
        default=TIMEOUT,
        metavar="SECONDS",
        help=TIMEOUT_HELP,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find out which tests `--ckpt-models` asks for; a worker of xdist is told by the process that started it."""
    given = config.getoption(_OPTION)
    if given is None:
        return
    models = _Models(_timeout(config))
    config.add_cleanup(models.close)
    handed_on = getattr(config, "workerinput", {}).get(_HANDED_ON)
    if handed_on is None:
        alone = config.args_source is not pytest.Config.ArgsSource.ARGS
        handed_on = {"targets": models.find(given), "alone": alone}
    models.handed_on = handed_on
    if handed_on["alone"]:
        config.args = []
    config.pluginmanager.register(models, "ckpt_surgery-models")


@dataclass
class _Models:
    """The plugin that is there where `--ckpt-models` is: makes the tests, and has the models examined."""

    timeout: float
    handed_on: dict[str, Any] = field(default_factory=dict)
    _pool: WorkerPool | None = None
    _known: dict[tuple[SurveyTarget, Mode], Report] = field(default_factory=dict)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist what to collect, so that all collect the same; they run it, this process does not."""
        node.workerinput[_HANDED_ON] = self.handed_on
        self.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Collect the models beside the test files."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            report.result = [*report.result, ModelCollector.from_parent(collector, name=_NAME, models=self)]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """See whether the next test is about the same model, which is then built once for both."""
        if isinstance(item, ModelItem):
            same = isinstance(nextitem, ModelItem) and nextitem.target == item.target
            item.together = (item.mode, nextitem.mode) if same and isinstance(nextitem, ModelItem) else (item.mode,)

    def find(self, given: str) -> list[dict[str, Any]]:
        """The targets that the option's value means, as plain data. Raises UsageError where a name means nothing."""
        from ckpt_surgery.survey.resolve import resolve_in
        from ckpt_surgery.survey.target import TargetError
        from ckpt_surgery.survey.worker_pool import WorkerPoolError

        names = [name for entry in given.split(",") if (name := entry.strip())]
        if not names:
            raise pytest.UsageError(f"{_OPTION} names nothing: give model types or classes with commas, or `all`")
        options: dict[str, Any] = {"names": [name for name in names if name != "all"], "everything": "all" in names}
        try:
            need_runtime(_OPTION)
            return [target.to_dict() for target in resolve_in(self.pool(), **options)]
        except MissingPackageError as error:
            raise pytest.UsageError(str(error)) from None
        except (WorkerPoolError, TargetError) as error:
            raise pytest.UsageError(f"{_OPTION}: {error}") from None

    def pool(self) -> WorkerPool:
        """Where worker processes come from."""
        if self._pool is None:
            from ckpt_surgery.survey.worker_pool import WorkerPool

            self._pool = WorkerPool()
        return self._pool

    def report(self, target: SurveyTarget, mode: Mode, together: Iterable[Mode]) -> Report:
        """What is found on a target in one mode; whatever is to be found `together` with it is found at once."""
        if (target, mode) not in self._known:
            from ckpt_surgery.survey import survey

            modes = tuple(together)
            (report,) = survey([target], modes=modes, workers=1, timeout=self.timeout, pool=self.pool())
            self._known |= {(target, each): report for each in modes}
        return self._known.pop((target, mode))

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class ModelCollector(pytest.Collector):
    """All models that `--ckpt-models` names; not tied to a file."""

    def __init__(self, models: _Models, **more: Any) -> None:
        super().__init__(nodeid=_NAME, **more)
        self.models = models

    def collect(self) -> Iterator[ModelItem]:
        """One test per class and mode, in the order of classes, the modes of one class side by side."""
        from ckpt_surgery.measure.results import MODES
        from ckpt_surgery.survey.target import target_of

        targets = [target_of(data) for data in self.models.handed_on["targets"]]
        names = [f"{target.model}/{target.variant}" for target in targets]
        for target, name in zip(targets, names, strict=True):
            place = target.argument if names.count(name) > 1 else ""
            for mode in MODES:
                inside = "-".join(filter(None, [target.variant.replace(" ", "_"), place, mode]))
                yield ModelItem.from_parent(
                    self, name=f"{target.model}[{inside}]", models=self.models, target=target, mode=mode
                )


class ModelItem(pytest.Item):
    """Whether checkpointing works on one model class in one mode."""

    def __init__(self, models: _Models, target: SurveyTarget, mode: Mode, **more: Any) -> None:
        super().__init__(**more)
        self.models, self.target, self.mode = models, target, mode
        self.together: tuple[Mode, ...] = (mode,)

    def runtest(self) -> None:
        """Have the model examined, and fail with the report; skip with the reason where there is no verdict."""
        report = self.models.report(self.target, self.mode, self.together)
        outcome: ModeReport | None = next((each for each in report.modes if each.mode == self.mode), None)
        if not report.supported:
            pytest.skip(report.problem or f"{report.label} says that it does not support gradient checkpointing")
        if outcome is None:
            pytest.skip(report.problem or "no mode was run")
        if not outcome.ok:
            seconds = {name: took for name, took in report.seconds.items() if name not in self.together}
            raise _DoesNotWork(replace(report, modes=(outcome,), seconds=seconds))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report alone; a traceback would only show this file."""
        if isinstance(excinfo.value, _DoesNotWork):
            return excinfo.value.text()
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Where it is: in no file."""
        return self.config.rootpath / _NAME, 0, self.name


class _DoesNotWork(Exception):
    """A failed test, with the report on its one mode."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report

    def text(self) -> str:
        """The rules and the failed levels, which pytest repeats in its summary, and the report."""
        from ckpt_surgery.report.summary import rules_of, verdict

        verdicts = [verdict(mode) for mode in self.report.modes]
        return f"{' '.join([*rules_of(self.report), ', '.join(verdicts)])}\n\n{self.report}"


def _timeout(config: pytest.Config) -> float:
    from ckpt_surgery.survey.options import checked_timeout
    from ckpt_surgery.survey.target import TargetError

    try:
        return checked_timeout(config.getoption("--ckpt-timeout"))
    except TargetError as error:
        raise pytest.UsageError(f"--ckpt-timeout {error}") from None
