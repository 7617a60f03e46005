"""The file of `--resume`: the finished reports of a survey, one per line, so that it can continue where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ckpt_surgery.measure.report import Report
from ckpt_surgery.survey.file_digests import named_files, unchanged
from ckpt_surgery.survey.target import SurveyTarget, TargetError

_FORMAT = "ckpt_surgery survey"


class ResumeError(TargetError):
    """A survey cannot be resumed from the file."""


class ResumeFile:
    """Reports appended to a file of JSON lines as they are finished; a context manager.

    The first line holds the `settings` of the survey, which must be the same again. A last line that was cut short is
    dropped. Numbers are written as Python does, NaN included. `timeout` is the current limit in seconds.

    Raises:
        ResumeError: the file is something else, was made with other settings, cannot be read or written, or is in
            use by another survey. It is left unchanged.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self._finished: dict[str, tuple[Report, Mapping[str, str], float | None]] = {}
        """Reports, with the digests of the files they depend on and the limit in seconds that a phase exceeded."""
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

    def report(self, target: SurveyTarget) -> Report | None:
        """Return the finished report on a target; None if it must be examined (again).

        That is so if a file of the model has changed, or if a phase exceeded a time limit that is now longer.
        """
        self._files[_key(target)] = named_files(target)  # read before the examination, so that later changes are seen
        report, files, stopped_after = self._finished.get(_key(target), (None, {}, None))
        if report is None or not unchanged(target, files):
            return None
        return None if stopped_after is not None and stopped_after < self.timeout else report

    def add(
        self, target: SurveyTarget, report: Report, *, files: Mapping[str, str], stopped_after: float | None
    ) -> None:
        """Append a report. It is in the file when this returns, whatever happens to the process.

        Args:
            target: the target.
            report: the report on it.
            files: the digests of the files that a factory was read from.
            stopped_after: the limit in seconds that a phase exceeded; None if none did.
        """
        own = self._files.get(_key(target)) or files
        entry = {"target": target.to_dict(), "files": dict(own), "stopped_after": stopped_after}
        self._append({**entry, "report": report.to_dict()})

    def _open(self, header: Mapping[str, Any]) -> None:
        import fcntl  # missing on some systems, which are refused when the workers start

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
                kept = Report.from_dict(entry["report"]), dict(entry["files"]), stopped and float(stopped)
                self._finished[_key(entry["target"])] = kept
            except (ValueError, TypeError, KeyError):
                raise ResumeError(
                    f"--resume {self.path}: line {number} is not a report: remove the line, or name another file"
                ) from None
        if len(whole) < len(text):
            os.ftruncate(self._file, len(whole))
        if not lines:
            self._append(header)

    def _compare(self, line: bytes, header: Mapping[str, Any]) -> None:
        try:
            existing = json.loads(line)
        except ValueError:
            raise self._foreign() from None
        if not isinstance(existing, dict) or existing.get("format") != _FORMAT:
            raise self._foreign()
        for name in dict.fromkeys([*header, *existing]):
            if existing.get(name) != header.get(name):
                raise ResumeError(
                    f"--resume {self.path} was made with {name} {_shown(existing.get(name))}, and this is "
                    f"{_shown(header.get(name))}: name another file, or remove it to start over"
                )

    def _foreign(self) -> ResumeError:
        return ResumeError(f"--resume {self.path} is not a file of a survey: name another file; it was left unchanged")

    def _append(self, entry: Mapping[str, Any]) -> None:
        data = json.dumps(entry).encode() + b"\n"
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise ResumeError(f"--resume {self.path} cannot be written to: {error.strerror or error}") from None
        if written < len(data):
            raise ResumeError(f"--resume {self.path} cannot be written to: no space is left")


def _key(target: SurveyTarget | Mapping[str, Any]) -> str:
    return json.dumps(target.to_dict() if isinstance(target, SurveyTarget) else target, sort_keys=True)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
