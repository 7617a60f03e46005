"""The file of `--resume`: what a survey has finished, one line a report, so that it can go on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ckpt_surgery.measure.report import Report, report_of
from ckpt_surgery.survey.file_digests import given_files, unchanged
from ckpt_surgery.survey.targets import SurveyTarget, TargetError

_FORMAT = "ckpt_surgery survey"


class ResumeError(TargetError):
    """The file cannot be gone on with: one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A report, the digests of the files it depends on, and the limit within which something did not end."""

    report: Report
    files: Mapping[str, str]
    stopped_after: float | None


class ResumeFile:
    """Reports as they are finished, appended to a file of JSON lines; a context manager.

    The first line says what the survey was made of; `settings` must be the same again. A last line that was
    torn by a kill is dropped. The numbers in it are Python's, NaN included. `timeout` is the limit in seconds now.

    Raises:
        ResumeError: the file is something else, was made with other settings, cannot be read or written, or is
            in use by another survey. It is left as it was.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self._finished: dict[str, _Entry] = {}
        self._files: dict[str, Mapping[str, str]] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ResumeError(f"--resume {path} cannot be opened: {error.strerror or error}") from None
        try:
            self._open({"format": _FORMAT, **json.loads(json.dumps(settings))})
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._file)

    def report(self, job: SurveyTarget) -> Report | None:
        """What was found out about a job before; None where it is still to be looked at.

        That is also where a file of the model has changed, or where it did not end within less time than now.
        """
        self._files[_key(job)] = given_files(job)  # before the work: what changes during it is looked at next time
        entry = self._finished.get(_key(job))
        if entry is None or not unchanged(job, entry.files):
            return None
        short = entry.stopped_after is not None and entry.stopped_after < self.timeout
        return None if short else entry.report

    def add(self, job: SurveyTarget, report: Report, *, files: Mapping[str, str], stopped_after: float | None) -> None:
        """Keep a report. It is in the file when this returns, whatever becomes of the process.

        `files` are the digests of what a factory was read from, `stopped_after` the seconds within which some phase
        did not end.
        """
        own = self._files.get(_key(job)) or files
        entry = {"job": job.to_dict(), "files": dict(own), "stopped_after": stopped_after}
        self._append({**entry, "report": report.to_dict()})

    def _open(self, header: Mapping[str, Any]) -> None:
        import fcntl  # not everywhere, and what has none is told so when the workers are started

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ResumeError(
                f"--resume {self.path} is in use by another survey: wait, or name another file"
            ) from None
        try:
            text = self.path.read_bytes()
        except OSError as error:
            raise ResumeError(f"--resume {self.path} cannot be read: {error.strerror or error}") from None
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if lines:
            self._compare(lines[0], header)
        elif not json.dumps(header).encode().startswith(text):
            raise self._foreign()
        for number, line in enumerate(lines[1:], 2):
            try:
                entry = json.loads(line)
                stopped = entry["stopped_after"]
                kept = _Entry(report_of(entry["report"]), dict(entry["files"]), stopped and float(stopped))
                self._finished[_key(entry["job"])] = kept
            except (ValueError, TypeError, KeyError):
                raise ResumeError(
                    f"--resume {self.path}: line {number} is no report: remove the line, or name another file"
                ) from None
        if len(whole) < len(text):
            os.ftruncate(self._file, len(whole))
        if not lines:
            self._append(header)

    def _compare(self, line: bytes, header: Mapping[str, Any]) -> None:
        try:
            there = json.loads(line)
        except ValueError:
            raise self._foreign() from None
        if not isinstance(there, dict) or there.get("format") != _FORMAT:
            raise self._foreign()
        for name in dict.fromkeys([*header, *there]):
            if there.get(name) != header.get(name):
                raise ResumeError(
                    f"--resume {self.path} was made with {name} {_shown(there.get(name))}, and this is "
                    f"{_shown(header.get(name))}: name another file, or remove it to begin anew"
                )

    def _foreign(self) -> ResumeError:
        return ResumeError(f"--resume {self.path} is no file of a survey: name another file; it was left as it is")

    def _append(self, entry: Mapping[str, Any]) -> None:
        data = json.dumps(entry).encode() + b"\n"
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise ResumeError(f"--resume {self.path} cannot be written to: {error.strerror or error}") from None
        if written < len(data):
            raise ResumeError(f"--resume {self.path} cannot be written to: no space is left")


def _key(job: SurveyTarget | Mapping[str, Any]) -> str:
    return json.dumps(job.to_dict() if isinstance(job, SurveyTarget) else job, sort_keys=True)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {found}" for name, found in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
