"""`verify` and imports inside the checkout's own Python, which has its torch and transformers, and nothing of ours.

`reproduce` starts it as `python -m ckpt_surgery.upstream.run.examine FOLDER`; the request is in the folder, and the
answer is written beside it. Imports only the standard library, torch, transformers and our own package.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckpt_surgery.survey.worker_pool import WorkerPool

REQUEST, ANSWER = "request.json", "answer.json"
PROGRESS = "progress"
"""A line of JSON for every step: a text, the number of finished jobs, and their total."""
TEMPLATE = "template.pid"
"""The process, and the process group, that every worker belongs to."""

_MODULE = "ckpt_surgery.upstream.run.examine"


def main(folder: Path) -> None:
    """Carry out the request and write the answer: `reports` and `failed_import`, or a `problem` as a clause."""
    request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    problem = unfit(Path(request["tree"]))
    answer = examined(folder, request) if problem is None else {"problem": problem}
    part = folder / f"{ANSWER}.part"
    part.write_text(json.dumps(answer, ensure_ascii=False), encoding="utf-8")
    part.replace(folder / ANSWER)


def unfit(tree: Path) -> str | None:
    """Why the models of a tree cannot be run in this interpreter, as a clause; None if they can."""
    if find_spec("torch") is None:
        return "it has no torch"
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return "it has no transformers"
    package = Path(spec.origin).parent
    if package.resolve() != (tree / "src" / "transformers").resolve():
        return f"it imports the transformers in {package}, and not the tree's"
    return None


def examined(folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """The reports by family, and why the first of the modules that cannot be imported cannot be.

    `classes` in the request are names of classes by family, whether models or not.
    """
    from ckpt_surgery.survey import survey
    from ckpt_surgery.survey.target import target_of
    from ckpt_surgery.survey.worker_pool import WorkerPool, WorkerPoolError

    try:
        with WorkerPool() as pool, (folder / PROGRESS).open("w", encoding="utf-8") as steps:
            (folder / TEMPLATE).write_text(str(pool.pid), encoding="ascii")
            by_family = pool.call(f"{_MODULE}:targets_of", classes=request["classes"])
            failed_import = _failed_import(pool, request["modules"])
            reports = survey(
                [target_of(target) for targets in by_family.values() for target in targets],
                workers=request["jobs"],
                progress=lambda *step: print(json.dumps(step), file=steps, flush=True),
                pool=pool,
            )
    except WorkerPoolError as error:
        return {"problem": str(error)}
    in_order = iter(reports)
    by_name = {family: [next(in_order).to_dict() for _ in targets] for family, targets in by_family.items()}
    return {"reports": by_name, "failed_import": failed_import}


def targets_of(_emit: object, /, classes: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """The targets by family, as plain JSON data, for the classes that are models, with their variants."""
    from ckpt_surgery.survey.resolve import resolve
    from ckpt_surgery.tiny import model_classes

    models = model_classes()
    return {
        family: [target.to_dict() for target in resolve([name for name in names if name in models])]
        for family, names in classes.items()
    }


def failed_import(_emit: object, /, modules: Sequence[str]) -> str:
    """The traceback of the first module that cannot be imported; empty if all can."""
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            inner = error.__traceback__ and error.__traceback__.tb_next
            return "".join(traceback.format_exception(error.with_traceback(inner))).strip()
    return ""


def _failed_import(pool: WorkerPool, modules: Sequence[str]) -> str:
    """The same in a worker of its own, which may also die of it."""
    from ckpt_surgery.survey.worker_pool import WorkerPoolError

    try:
        return str(pool.call(f"{_MODULE}:failed_import", modules=modules)) if modules else ""
    except WorkerPoolError as error:
        return str(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
