"""How fast are `check` and `apply` on whole releases, beside `ast.parse`, mlinter and libcst on the same files?

Every contestant runs in turn, round after round, and each ratio is taken within its round. Prints a table
of figures and targets; writes json. Needs no torch. Three rounds take_snapshot about 25 minutes on two cores, nearly
all of them mlinter's and libcst's: `--only check help` takes one. With `--tree FOLDER` other people's code is
checked, whatever is in the folder.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.figures import Figure, finish, option_parser, rounds_option
from benchmarks.releases import ReleaseError, fetch
from benchmarks.stopwatch import CommandFailed, Run
from benchmarks.tree_speed_report import RELEASE, TREE, as_json, figures, table
from benchmarks.tree_speed_runs import CHECKED, GROUPS, Contestant, contestants


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    try:
        _say("getting ready")
        models = fetch(CHECKED) / "models"
        everyone = contestants(options.only, models, kept=options.kept, tree=options.tree)
        with tempfile.TemporaryDirectory(prefix="tree-speed-") as scratch:
            samples = play(everyone, options.runs, Path(scratch))
        measured = [*figures(samples, TREE if options.tree else RELEASE), *(phases(models) if options.profile else ())]
    except (ReleaseError, CommandFailed) as error:
        print(f"tree_speed: {error}.", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tree_speed: {error.filename}: {error.strerror or error}.", file=sys.stderr)
        return 2
    checked = options.tree.name if options.tree else f"transformers {CHECKED}"
    text = as_json(measured, samples, options.runs, checked)
    return finish("tree_speed", measured, text, options.out, [table(measured, options.runs, checked)])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("tree_speed", __doc__)
    parser.add_argument("--runs", type=rounds_option, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, help="run these, not all")
    parser.add_argument("--tree", type=Path, metavar="FOLDER", help="check this, not a release of transformers")
    parser.add_argument("--kept", action="store_true", help="also time ast.parse with all trees kept (slow)")
    parser.add_argument("--profile", action="store_true", help="also time the phases of one check in one process")
    return parser.parse_args(arguments)


def play(everyone: Sequence[Contestant], rounds: int, scratch: Path) -> dict[str, list[Run]]:
    """Let everyone run in turn, `rounds` times; what ran, by name."""
    samples: dict[str, list[Run]] = defaultdict(list)
    for number in range(1, rounds + 1):
        for position, contestant in enumerate(everyone):
            folder = scratch / f"{number}-{position}"
            folder.mkdir()
            for name, run in contestant(folder):
                samples[name].append(run)
                _say(f"round {number} of {rounds}: {name}: {run.seconds:.2f} s, on processors {run.processor:.2f} s")
            shutil.rmtree(folder)
    return dict(samples)


def phases(models: Path) -> Iterator[Figure]:
    """Where the time of one `check` goes, in this process and without a cache, in seconds."""
    from ckpt_surgery.codemods import RULES
    from ckpt_surgery.static.discover import discover, read_sources
    from ckpt_surgery.static.reading import gc_paused
    from ckpt_surgery.static.snapshot import select_codes, take_snapshot

    _say("timing the phases")
    clock = perf_counter()

    def lap(name: str) -> Figure:
        nonlocal clock
        start, clock = clock, perf_counter()
        return Figure(f"in one process: {name}", (clock - start,), "s")

    with gc_paused():
        sources, _ = read_sources(discover([models])[0])
        yield lap("reading the files")
        for source in sources:
            ast.parse(source.text)
        yield lap("ast.parse alone")
        snapshot, _ = take_snapshot(sources, jobs=1, cache=False, progress=None)
        yield lap("parsing them and taking their facts")
        context = snapshot.context(select_codes((), ()), include_unsupported=False)
        yield lap("making the index")
        for rule in RULES:
            list(rule.find(context))
            yield lap(f"{rule.code}, with what it first asks of the index")


def _say(text: str) -> None:
    print(f"tree_speed: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
