"""The command `adopt`: read the options, find the faults in a model's folder, prove its repair, write it if asked to.

Neither torch nor transformers is imported in this process: worker processes do that, and only with
`--trust-remote-code`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt_surgery.cli.config import Config, ConfigError
from ckpt_surgery.cli.exits import ExitCode, fail, finish, termination_raises
from ckpt_surgery.cli.options import (
    Ignore,
    IncludeUnsupported,
    Jobs,
    Select,
    Timeout,
    analysis_options,
    named_paths,
    time_limit,
)
from ckpt_surgery.cli.terminal import progress_bar, say, width_of, write_lines
from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.optional import need_runtime

if TYPE_CHECKING:
    from ckpt_surgery.adopt.proof import ClassProof
    from ckpt_surgery.adopt.source import SourceResult


def adopt_command(
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="A model's folder: config.json with auto_map, and modeling_*.py."),
    ],
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code in the folder, to prove the repair.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the repair, if it makes nothing worse.")] = False,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Write the diff, a model-card section and a pull request to this new folder."
        ),
    ] = None,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Also make repairs that may break callers elsewhere.")
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    include_unsupported: IncludeUnsupported = None,
    jobs: Jobs = None,
    timeout: Timeout = TIMEOUT,
) -> None:
    """Find and repair the faults of one model's own code, and prove the repair.

    Without --trust-remote-code nothing in the folder is run; without --write nothing in it is changed.
    """

    def body() -> int:
        from ckpt_surgery.adopt.pages import check_output
        from ckpt_surgery.adopt.source import ModelFolder, SourceResult
        from ckpt_surgery.adopt.text import repair_lines, source_lines

        if write and not trust_remote_code:
            raise ConfigError(
                "--write needs --trust-remote-code, because only a proved repair is written: `ckpt_surgery apply` "
                "writes one without a proof"
            )
        (path,) = named_paths([folder])
        model = ModelFolder.read(path)
        out = None if output is None else named_paths([output])[0]
        if out is not None:
            check_output(out, model)
        limit = time_limit(timeout)
        config = Config.load(model.path)
        options = analysis_options(config, select, ignore, jobs, include_unsupported, no_cache=False)
        if trust_remote_code:
            need_runtime("adopt --trust-remote-code")
        source = SourceResult.of(model, unsafe=unsafe, **options)
        width = width_of(sys.stdout)
        for problem in source.repair.problems:
            say(f"error: {problem}")
        write_lines(source_lines(source, width=width))
        diff = source.diff.decode("utf-8", "backslashreplace").split("\n")[:-1]
        write_lines([*diff, ""] if diff else [], diff=True)
        write_lines(repair_lines(source, unsafe=unsafe, width=width))
        proofs: tuple[ClassProof, ...] = ()
        if trust_remote_code:
            from ckpt_surgery.adopt.prove import prove
            from ckpt_surgery.survey.worker_pool import WorkerPool

            with termination_raises(), WorkerPool() as pool, progress_bar() as progress:
                proofs = prove(source, pool=pool, workers=options["jobs"], timeout=limit, progress=progress)
        return _decide(source, proofs, unsafe, trust_remote_code, write, out)

    finish(body, lambda: "the folder is as it was, or repaired as a whole")


def _decide(
    source: SourceResult, proofs: tuple[ClassProof, ...], unsafe: bool, trusted: bool, write: bool, out: Path | None
) -> int:
    """Decide on the repair, write what was asked for, report the decision, and return the exit code."""
    from ckpt_surgery.adopt.pages import write_pages
    from ckpt_surgery.adopt.proof import Adoption, Decision
    from ckpt_surgery.adopt.source import write_changes
    from ckpt_surgery.adopt.text import decision_lines
    from ckpt_surgery.measure.versions import installed_versions
    from ckpt_surgery.text import listed

    width = width_of(sys.stdout)
    adoption = Adoption(source, proofs, unsafe, installed_versions())
    for proof in proofs:
        write_lines([*proof.paired.lines(width=width, repaired_by="the repair"), ""])
    if write and adoption.decision is Decision.PROVED:
        with termination_raises():
            write_changes(source.repair.changes)
        adoption = replace(adoption, written=True)
    if out is not None:
        names = write_pages(adoption, out)
        write_lines([f"In {out}: {listed(names)}."])
    write_lines(decision_lines(adoption, trusted=trusted, width=width))
    if trusted and not adoption.measured:
        return max(fail(f"{source.folder.path}: {proof.before.problem}") for proof in proofs)
    if source.repair.problems:
        return ExitCode.ERROR
    return ExitCode.CLEAN if adoption.clean else ExitCode.FINDINGS
