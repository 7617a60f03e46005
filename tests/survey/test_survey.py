"""A survey goes on whatever a model does to its process, reports it, and is the same however it is run.

Real processes with a fake examination, without torch.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import MODES, Repair
from ckpt_surgery.survey import survey
from ckpt_surgery.survey.job import SurveyJob
from ckpt_surgery.survey.resume import ResumeError, ResumeFile
from ckpt_surgery.survey.scheduler import Scheduler
from ckpt_surgery.survey.target import SurveyTarget, TargetKind
from ckpt_surgery.survey.worker_pool import WorkerPool, WorkerPoolError
from tests.survey.stand_in import EXAMINATION

pytestmark = pytest.mark.slow

TIMEOUT = 60.0
"""The limit for jobs that end at once, on any machine."""
SOON = 2.0
"""The limit for jobs that never end: those in `HANGING` alone."""
HANGING = {
    "hangs_in_c": "non_reentrant",
    "hangs_the_first_time": "non_reentrant",
    "hangs_while_built": "build",
    "sleeps": "reference",
    "hangs_after_surgery": "after non_reentrant",
    "hangs_in_surgery": "wrap_blocks",
}

FACTORIES = """
import ctypes, os, sys, time
from pathlib import Path

LOG = Path(__file__).with_name("log")

def note(word):
    with LOG.open("a") as log:
        log.write(f"{word} {os.getpid()}\\n")

def good():
    note("good")
    return {"name": "Good"}, {"x": 1}

def lost():
    return {"lost": ["a.weight"]}, {}

def hold_the_lock():
    reader, _writer = os.pipe()
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)

def hangs_in_c():
    return {"non_reentrant": hold_the_lock}, {}

def hangs_the_first_time():
    note("first")
    return {"non_reentrant": hold_the_lock} if LOG.read_text().count("first") == 1 else {}, {}

def sleeps():
    return {"reference": lambda: time.sleep(1000)}, {}

def backward():
    hold_the_lock()

def hangs_while_built():
    hold_the_lock()

def crashes():
    return {"reentrant": lambda: (print("before", file=sys.stderr), ctypes.string_at(0))}, {}

def aborts():
    return {"non_reentrant": os.abort}, {}

def crashes_when_built_again():
    note("again")
    if LOG.read_text().count("again") > 1:
        os.abort()
    return {"non_reentrant": os.abort}, {}

def killed():
    return {"reentrant": lambda: os.kill(os.getpid(), 9)}, {}

def killed_in_the_reference():
    return {"reference": lambda: os.kill(os.getpid(), 9)}, {}

def leaves():
    return {"reentrant": lambda: os._exit(3)}, {}

def exits():
    return {"reentrant": lambda: sys.exit("enough")}, {}

def bad_step():
    raise ZeroDivisionError("in\\nthe step")

def raises():
    bad_step()

def raises_in_the_reference():
    return {"reference": bad_step}, {}

def raises_in_a_mode():
    return {"reentrant": bad_step}, {}

def refuses():
    from tests.survey.stand_in import Refusal
    def no():
        raise Refusal("the inputs do not fit: give others")
    return {"reference": no}, {}

def loud():
    for _ in range(20000):
        print("noise " * 20)
    print("the last word")
    sys.stdout.flush()
    os.abort()

def closes_its_output():
    os.close(1)
    os.close(2)
    return {}, {}

def large():
    note("large")
    global KEPT
    KEPT = bytearray(64 << 20)
    return {}, {}

def unsupported():
    return {"supported": False, "problem": "it supports nothing", "non_reentrant": os.abort}, {}

def unclaimed():
    return {"supported": False, "lost": ["a.weight"]}, {}

def stays_lost():
    return {"lost": ["a.weight"], "stays_lost": ["a.weight"]}, {}

def hangs_after_surgery():
    note("built")
    return {"lost": ["a.weight"], "after non_reentrant": backward}, {}

def hangs_in_surgery():
    return {"wrap_blocks": hold_the_lock}, {}

def crashes_after_surgery():
    return {"after non_reentrant": os.abort}, {}

def crashes_in_surgery():
    return {"wrap_blocks": os.abort}, {}

def raises_in_surgery():
    return {"wrap_blocks": bad_step}, {}

def raises_after_surgery():
    return {"after non_reentrant": bad_step}, {}

def no_blocks():
    from ckpt_surgery.errors import SurgeryError
    def no():
        raise SurgeryError("Dictionary has no blocks\\nto checkpoint")
    return {"wrap_blocks": no, "after non_reentrant": os.abort}, {}

def unclaimed_without_layers():
    return {"supported": False, "problem": "it supports nothing", "non_reentrant": os.abort}, {}
"""

HELPED = """
from helper import NAME

def make():
    return {"name": NAME + " of 1"}, {}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("factories")
    (place / "odd_models.py").write_text(FACTORIES, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[WorkerPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        with WorkerPool(preload=()) as home:
            yield home


@pytest.fixture(autouse=True)
def log(folder: Path) -> Path:
    path = folder / "log"
    path.unlink(missing_ok=True)
    return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop soon whatever never ends, and give whatever ends all the time, however busy the machine is."""
    begin = Scheduler._begin_phase

    def begin_soon(scheduler: Scheduler, slot: Any, job: SurveyJob) -> None:
        begin(scheduler, slot, job)
        if job.phase and job.phase.name == HANGING.get(job.target.argument.partition(":")[2]):
            slot.deadline = slot.since + SOON

    monkeypatch.setattr(Scheduler, "_begin_phase", begin_soon)


Look = Callable[..., list[Report]]


@pytest.fixture
def look(pool: WorkerPool, impatient: None) -> Look:
    def run(*names: str, **options: Any) -> list[Report]:
        options = {"timeout": TIMEOUT, "workers": 1, "pool": pool, "examination": EXAMINATION, **options}
        return survey([target(name) for name in names], **options)

    return run


def target(name: str) -> SurveyTarget:
    argument = f"odd_models:{name}"
    return SurveyTarget(argument, argument, TargetKind.FACTORY)


def faults(report: Report) -> dict[str, str]:
    return {mode: f"{fault.level}: {fault.expected} / {fault.seen}" for mode, fault in report.faults}


def faults_after(report: Report) -> dict[str, str]:
    assert report.repair is not None
    return faults(Report(report.model, modes=report.repair.modes))


LOST = "set: a gradient / none or only zeros (1 of 1 gradients)"
"""The fault of the fake model that loses its gradient."""


class TestAModelThatIsWell:
    def test_has_a_report_of_each_mode_level_and_phase_asked_for(self, look: Look) -> None:
        (report,) = look("good")
        assert (report.model, report.target, report.status) == ("Good", "odd_models:good", "ok")
        assert [mode.mode for mode in report.modes] == list(MODES)
        assert report.modes[0].skips[0].details["error"] == "{'x': 1}"
        assert list(report.seconds) == ["build", "reference", *MODES]
        assert "ckpt-surgery" in report.versions
        (report,) = look("good", modes=["reentrant"], levels=("set",))
        assert [(mode.mode, dict(mode.outcomes)) for mode in report.modes] == [("reentrant", {"set": "ok"})]
        (report,) = look("lost")
        assert report.status == "failed"
        assert faults(report) == dict.fromkeys(MODES, LOST)

    def test_one_without_support_is_run_only_if_it_can_checkpoint(self, look: Look) -> None:
        (report,) = look("unsupported")
        assert (report.status, report.modes) == ("unsupported", ())
        (report,) = look("unclaimed")
        assert (report.status, len(report.modes)) == ("unsupported", 2)
        assert faults(report) == dict.fromkeys(MODES, LOST)


class TestAModelAfterSurgery:
    def test_is_examined_as_it_runs_whatever_was_asked_for(self, look: Look) -> None:
        (report,) = look("lost", fix=True, modes=["reentrant"], levels=("set",))
        assert faults(report) == {"reentrant": LOST}
        assert report.repair is not None
        assert (report.repair.status, report.repair.surgery) == ("ok", "what was done")
        assert [(mode.mode, dict(mode.outcomes)) for mode in report.repair.modes] == [("non_reentrant", {"set": "ok"})]
        assert list(report.seconds) == ["build", "reference", "reentrant", "after non_reentrant"]

    def test_is_there_too_where_no_support_was_claimed(self, look: Look) -> None:
        reports = look("unclaimed", "unclaimed_without_layers", fix=True)
        assert [report.status for report in reports] == ["unsupported", "unsupported"]
        assert [len(report.modes) for report in reports] == [2, 0]
        assert [faults_after(report) for report in reports] == [{}, {}]
        assert all(report.repair is not None and len(report.repair.modes) == 1 for report in reports)

    def test_that_hangs_is_stopped_there_alone(self, look: Look, log: Path) -> None:
        broken, after = look("hangs_after_surgery", "good", fix=True)
        assert faults_after(broken).keys() == {"non_reentrant"}
        seen = faults_after(broken)["non_reentrant"]
        assert seen.startswith("run: the backward to end / it does not end within 60 s, at ")
        assert seen.endswith(" in hold_the_lock")
        assert faults(broken) == dict.fromkeys(MODES, LOST)
        assert broken.repair is not None
        assert broken.repair.surgery == "what was done"
        assert broken.seconds["after non_reentrant"] >= SOON
        assert log.read_text().count("built") == 1
        assert after.ok

    @pytest.mark.parametrize(
        ("name", "seen"),
        [
            ("crashes_after_surgery", "run: the step to end / the process was killed by SIGABRT"),
            ("raises_after_surgery", "run: the step to end / ZeroDivisionError: in the step"),
            ("hangs_in_surgery", "run: a surgery that can be done / it does not end within 60 s"),
            ("crashes_in_surgery", "run: a surgery that can be done / the process was killed by SIGABRT"),
            ("raises_in_surgery", "run: a surgery that can be done / it raised ZeroDivisionError: in the step"),
        ],
    )
    def test_that_breaks_has_a_fault_after_and_none_before(self, look: Look, name: str, seen: str) -> None:
        broken, after = look(name, "good", fix=True)
        assert broken.ok
        assert faults_after(broken).keys() == {"non_reentrant"}
        assert all(text.startswith(seen) for text in faults_after(broken).values())
        assert after.repair is not None
        assert after.repair.status == "ok"

    def test_on_which_none_can_be_done_has_the_reason_or_no_repair(self, look: Look) -> None:
        (report,) = look("no_blocks", fix=True)
        assert report.repair == Repair(problem="Dictionary has no blocks to checkpoint", refused=True)
        assert report.repair.status == "refused"
        assert report.ok
        assert [report.repair for report in look("raises", "refuses", "killed_in_the_reference", fix=True)] == [
            None
        ] * 3


class TestAModelThatIsNot:
    @pytest.mark.parametrize(
        ("name", "mode", "seen"),
        [
            ("crashes", "reentrant", "the process was killed by SIGSEGV, at ctypes/__init__.py:"),
            ("crashes", "reentrant", "; the last line it wrote: before"),
            ("aborts", "non_reentrant", "the process was killed by SIGABRT, at "),
            ("killed", "reentrant", "the process was killed by SIGKILL (which a system out of memory also sends)"),
            ("leaves", "reentrant", "the process exited with code 3"),
            ("exits", "reentrant", "it raised SystemExit: enough"),
            ("raises_in_a_mode", "reentrant", "ZeroDivisionError: in the step"),
        ],
    )
    def test_fails_in_that_mode_alone_and_the_next_is_examined(
        self, look: Look, name: str, mode: str, seen: str
    ) -> None:
        broken, after = look(name, "good")
        assert faults(broken).keys() == {mode}
        assert faults(broken)[mode].startswith("run: the step to end / ")
        assert seen in faults(broken)[mode]
        by_mode = {mode_report.mode: mode_report for mode_report in broken.modes}
        assert by_mode.keys() == {*MODES}
        assert by_mode[mode].outcomes["run"] == "failed"  # type: ignore[index]
        assert by_mode[mode].outcomes["set"] == "skipped"  # type: ignore[index]
        assert after.ok

    def test_is_stopped_where_a_c_function_that_holds_the_lock_never_ends(self, look: Look) -> None:
        broken, after = look("hangs_in_c", "good")
        assert faults(broken).keys() == {"non_reentrant"}
        seen = faults(broken)["non_reentrant"]
        assert seen.startswith("run: the step to end / it does not end within 60 s, at ")
        assert seen.endswith(" in hold_the_lock")
        assert broken.modes[1].ok
        assert broken.seconds["non_reentrant"] >= SOON
        assert after.ok

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("hangs_while_built", "building it failed: it does not end within 60 s, at factories"),
            ("sleeps", "the run without checkpointing failed: it does not end within 60 s, at "),
            ("killed_in_the_reference", "the run without checkpointing failed: the process was killed by SIGKILL"),
            ("raises", "building it raised ZeroDivisionError: in the step"),
            ("raises_in_the_reference", "the run without checkpointing raised ZeroDivisionError: in the step"),
            ("refuses", "the inputs do not fit: give others"),
            ("loud", "building it failed: the process was killed by SIGABRT, at "),
            ("loud", "; the last line it wrote: the last word"),
            ("no_such_factory", "module 'odd_models' has no attribute 'no_such_factory'"),
        ],
    )
    def test_has_no_verdict_where_it_is_not_even_run_without(self, look: Look, name: str, problem: str) -> None:
        broken, after = look(name, "good")
        assert (broken.status, broken.modes) == ("not built", ())
        assert broken.target == f"odd_models:{name}"  # the command line puts it before the problem
        assert problem in broken.problem
        assert "\n" not in broken.problem
        assert broken.versions
        assert after.ok

    def test_that_cannot_be_built_a_second_time_fails_in_what_was_left(self, look: Look) -> None:
        (report,) = look("crashes_when_built_again")
        assert faults(report)["non_reentrant"].startswith("run: the step to end")
        assert faults(report)["reentrant"].startswith("run: the model to be built a second time / the process was")

    def test_may_close_its_output(self, look: Look) -> None:
        began = time.process_time()
        assert [report.ok for report in look("closes_its_output", "good")] == [True, True]
        assert time.process_time() - began < 1, "a closed pipe is waited for again and again"


class TestTheProcesses:
    def test_one_that_is_well_does_many_jobs(self, look: Look, log: Path) -> None:
        look("good", "lost", "good", "raises", "good")
        assert len(set(log.read_text().split("\n")[:-1])) == 1

    def test_one_that_has_grown_is_replaced(self, look: Look, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        look("large", "good")
        assert len({line.split()[1] for line in log.read_text().splitlines()}) == 1
        log.unlink()
        monkeypatch.setattr("ckpt_surgery.survey.scheduler.MOST_RESIDENT_BYTES", 60 << 20)
        look("large", "good")
        assert len({line.split()[1] for line in log.read_text().splitlines()}) == 2

    def test_none_is_left_behind(self, look: Look, pool: WorkerPool) -> None:
        look("good", "hangs_in_c", "crashes", workers=2)
        assert wait_for_none(lambda: workers_of(pool)) == []

    def test_none_is_left_behind_by_an_interrupt(self, folder: Path) -> None:
        def interrupt(_step: str, done: int, _total: int) -> None:
            if done:
                raise KeyboardInterrupt

        with WorkerPool(preload=()) as home:
            group = home.pid
            options: dict[str, Any] = {"workers": 2, "progress": interrupt, "pool": home}
            with pytest.raises(KeyboardInterrupt):
                survey([target("hangs_in_c"), target("good")], examination=EXAMINATION, **options)
        assert wait_for_none(lambda: running(group)) == []

    def test_a_fork_server_that_dies_is_replaced(self, look: Look, folder: Path) -> None:
        with WorkerPool(preload=["tests.survey.stand_in:leave"]) as home:  # which raises without a code
            assert look("good", pool=home)[0].ok
            busy = home.worker()
            first = home.pid
            os.kill(first, signal.SIGKILL)
            assert look("good", pool=home)[0].ok
            assert home.pid != first
            os.kill(busy.pid, 0)
        assert wait_for_none(lambda: running(first)) == []

    def test_what_cannot_be_imported_is_reported_in_a_sentence(self, look: Look) -> None:
        with (
            WorkerPool(preload=["no_such_package"]) as home,
            pytest.raises(
                WorkerPoolError, match="cannot be imported: ModuleNotFoundError: No module named 'no_such_pac"
            ),
        ):
            look("good", pool=home)

    def test_a_call_returns_or_raises_what_the_function_did(self, pool: WorkerPool) -> None:
        resolve = "ckpt_surgery.survey.resolve:resolve_apart"
        assert pool.call(resolve, names=["a:b"], variants=False)["targets"][0]["kind"] == "factory"
        with pytest.raises(WorkerPoolError, match=r"^TypeError: .*no_such_option"):
            pool.call(resolve, no_such_option=1)
        with pytest.raises(WorkerPoolError, match="exited with code 7"):
            pool.call("tests.survey.stand_in:leave", code=7)


class TestTheOrder:
    NAMES = ("good", "lost", "raises", "crashes", "good", "unsupported", "lost")

    def test_is_that_of_the_jobs_whatever_the_number_of_workers(self, look: Look) -> None:
        def shown(reports: list[Report]) -> list[Any]:
            return [(r.target, r.status, r.problem, r.faults) for r in reports]

        alone = shown(look(*self.NAMES))
        assert [argument for argument, *_ in alone] == [f"odd_models:{name}" for name in self.NAMES]
        assert shown(look(*self.NAMES, workers=3)) == alone

    def test_of_one_that_runs_out_of_time_beside_others_is_that_of_a_run_alone(self, look: Look, log: Path) -> None:
        again, _ = look("hangs_the_first_time", "good", workers=2)
        assert again.status == "ok"
        still, _ = look("hangs_in_c", "good", workers=2)
        assert still.status == "failed"
        log.unlink()
        (alone,) = look("hangs_the_first_time")
        assert alone.status == "failed"

    def test_progress_counts_to_the_end(self, look: Look) -> None:
        events: list[tuple[str, int, int]] = []
        look(*self.NAMES, progress=lambda *what: events.append(what))
        assert [(done, total) for _, done, total in events] == [(n, 7) for n in range(8)]
        assert events[-1][0] == "2 ok, 3 failed, 1 unsupported, 1 not built"


class TestResuming:
    def test_what_is_finished_is_not_done_again(self, look: Look, tmp_path: Path, log: Path) -> None:
        file = tmp_path / "kept.jsonl"
        first = look("good", "lost", "raises", "crashes", resume=file)
        log.unlink()
        again = look("lost", "good", "crashes", "raises", "good", resume=file)
        assert not log.exists(), "it was built again"
        assert [r.to_dict() for r in again] == [first[i].to_dict() for i in (1, 0, 3, 2, 0)]
        assert look("good", "aborts", resume=file)[1].status == "failed"

    def test_what_was_finished_before_a_kill_is_kept(self, look: Look, tmp_path: Path, folder: Path) -> None:
        file = tmp_path / "kept.jsonl"
        child = os.fork()
        if child == 0:
            try:
                tempfile.tempdir = str(tmp_path)
                with WorkerPool(preload=()) as home:
                    look("good", "lost", "hangs_in_c", "raises", resume=file, pool=home, timeout=1000)
            finally:
                os._exit(1)
        limit = time.monotonic() + 30
        while time.monotonic() < limit and not (file.exists() and file.read_bytes().count(b"\n") == 3):
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        events: list[int] = []
        reports = look("good", "lost", "sleeps", resume=file, progress=lambda _, n, __: events.append(n))
        assert events == [2, 3]
        assert [report.status for report in reports] == ["ok", "failed", "not built"]

    def test_a_torn_last_line_is_done_again(self, look: Look, tmp_path: Path) -> None:
        file = tmp_path / "kept.jsonl"
        look("good", "lost", resume=file)
        whole = file.read_bytes()
        for cut in (1, 20, len(whole) - 3):
            file.write_bytes(whole[:-cut])
            assert [report.status for report in look("good", "lost", resume=file)] == ["ok", "failed"]
            lines = file.read_text().splitlines()
            assert [bool(json.loads(line)) for line in lines] == [True] * 3

    def test_a_factory_whose_module_or_helper_has_changed_is_run_again(self, tmp_path: Path, folder: Path) -> None:
        (folder / "helped.py").write_text(HELPED, encoding="utf-8")
        (folder / "helper.py").write_text("NAME = 'First'\n", encoding="utf-8")
        file = tmp_path / "kept.jsonl"

        def named(pool: WorkerPool) -> str:
            options: dict[str, Any] = {"resume": file, "workers": 1, "pool": pool, "examination": EXAMINATION}
            return survey([SurveyTarget("helped:make", "helped:make", TargetKind.FACTORY)], **options)[0].model

        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            with WorkerPool(preload=()) as home:
                assert named(home) == "First of 1"
                (folder / "helper.py").write_text("NAME = 'Second one'\n", encoding="utf-8")
                assert named(home) == "Second one of 1"
                (folder / "helped.py").write_text(HELPED.replace("of 1", "of two"), encoding="utf-8")
                assert named(home) == "Second one of two"
                kept = file.read_bytes()
                assert named(home) == "Second one of two"
                assert file.read_bytes() == kept

    def test_what_did_not_end_is_tried_again_with_more_time_and_only_then(
        self, look: Look, tmp_path: Path, log: Path
    ) -> None:
        file = tmp_path / "kept.jsonl"
        look("hangs_in_c", "good", resume=file, timeout=50)
        events: list[int] = []
        look("hangs_in_c", resume=file, timeout=50, progress=lambda _, n, __: events.append(n))
        look("hangs_in_c", resume=file, timeout=40, progress=lambda _, n, __: events.append(n))
        assert events == [1, 1]
        again = look("hangs_in_c", "good", resume=file, timeout=70, progress=lambda _, n, __: events.append(n))
        assert events == [1, 1, 1, 2]
        assert "within 70 s" in faults(again[0])["non_reentrant"]

    @pytest.mark.parametrize(
        ("kind", "changed"),
        [
            (TargetKind.CONFIG, "config.json"),
            (TargetKind.REMOTE, "config.json"),
            (TargetKind.REMOTE, "code.py"),
            (TargetKind.REMOTE, "new.py"),
        ],
    )
    def test_a_folder_in_which_something_has_changed_is_looked_at_again(
        self, tmp_path: Path, kind: TargetKind, changed: str
    ) -> None:
        place = tmp_path / "model"
        place.mkdir()
        for name in ("config.json", "code.py", "weights.bin"):
            (place / name).write_text("1", encoding="utf-8")
        source = f"{place}::code.Toy" if kind is TargetKind.REMOTE else str(place / "config.json")
        subject = SurveyTarget(str(place), "Toy", kind, source=source)
        with ResumeFile(tmp_path / "kept.jsonl", {}, 20.0) as kept:
            assert kept.report(subject) is None
            kept.add(subject, Report("Toy"), files={}, stopped_after=None)
        (place / "weights.bin").write_text("2", encoding="utf-8")
        with ResumeFile(tmp_path / "kept.jsonl", {}, 20.0) as kept:
            assert kept.report(subject) == Report("Toy")
        (place / changed).write_text("2", encoding="utf-8")
        with ResumeFile(tmp_path / "kept.jsonl", {}, 20.0) as kept:
            assert kept.report(subject) is None

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"modes": ["reentrant"]}, "was made with modes non_reentrant, reentrant, and this is reentrant: name"),
            ({"levels": ["set"]}, "was made with levels run, recompute, set, values, state, cost, and this is set"),
            ({"fix": True}, "was made with fix no, and this is yes"),
        ],
    )
    def test_other_settings_are_refused(self, look: Look, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
        file = tmp_path / "kept.jsonl"
        look("good", resume=file)
        before = file.read_bytes()
        with pytest.raises(ResumeError, match=reason):
            look("good", resume=file, **change)
        assert file.read_bytes() == before

    def test_other_releases_and_broken_lines_are_refused(
        self, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "kept.jsonl"
        monkeypatch.setattr("ckpt_surgery.survey.installed_versions", lambda: {"transformers": "4.57.6"})
        look("good", resume=file)
        monkeypatch.setattr("ckpt_surgery.survey.installed_versions", lambda: {"transformers": "5.23.0"})
        with pytest.raises(ResumeError, match=r"versions transformers 4\.57\.6, and this is transformers 5\.23\.0"):
            look("good", resume=file)
        monkeypatch.undo()
        file = tmp_path / "again.jsonl"
        look("good", "lost", resume=file)
        lines = file.read_text().splitlines()
        file.write_text("\n".join([lines[0], "{}", lines[2], ""]))
        with pytest.raises(ResumeError, match="line 2 is not a report"):
            look("good", resume=file)

    @pytest.mark.parametrize("text", ["my notes\n", "my notes", "[1]\n", '{"format": "other"}\n', "\0\xff\n"])
    def test_a_file_of_something_else_is_left_alone(self, look: Look, tmp_path: Path, text: str) -> None:
        file = tmp_path / "notes"
        file.write_text(text, encoding="latin-1")
        with pytest.raises(ResumeError, match="is not a file of a survey"):
            look("good", resume=file)
        assert file.read_text(encoding="latin-1") == text

    def test_a_place_that_cannot_be_written_to_is_reported(self, look: Look, tmp_path: Path) -> None:
        with pytest.raises(ResumeError, match="cannot be opened: No such file or directory"):
            look("good", resume=tmp_path / "no" / "kept.jsonl")
        with pytest.raises(ResumeError, match="cannot be opened: Is a directory"):
            look("good", resume=tmp_path)

    def test_two_surveys_do_not_share_a_file(self, look: Look, tmp_path: Path) -> None:
        file = tmp_path / "kept.jsonl"

        def second(_step: str, done: int, _total: int) -> None:
            if done:
                with pytest.raises(ResumeError, match="is in use by another survey"):
                    look("lost", resume=file)

        assert look("good", resume=file, progress=second)[0].ok


def wait_for_none(look: Callable[[], list[str]]) -> list[str]:
    """Wait up to ten seconds for nothing to be left; return what is."""
    limit = time.monotonic() + 10
    while (left := look()) and time.monotonic() < limit:
        time.sleep(0.02)
    return left


def workers_of(pool: WorkerPool) -> list[str]:
    return Path(f"/proc/{pool.pid}/task/{pool.pid}/children").read_text(encoding="ascii").split()


def running(group: int) -> list[str]:
    """List the processes of a group, without zombies."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, process_group = file.read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(process_group) == group and state not in "ZX":
            processes.append(file.parent.name)
    return processes
