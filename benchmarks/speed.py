"""How fast are the commands, and how much memory do they take? Each as a user runs it.

    python -m benchmarks.speed [check apply help verify explain]

`check` and `apply` on a release of transformers, beside `ast.parse` of the same files;
`--help`, which imports neither torch nor transformers; `verify` of one model type and of a part of them all; `explain`
on the shapes of Llama 8B and 405B and of DeepSeek-V3. Prints a table of figures and targets; writes json. Takes about
five minutes on two idle cores. Exits with 1 where a target is missed.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.figures import ROOT, Figure, Target, document, finish, option_parser
from benchmarks.stopwatch import CommandFailed, Run, measure
from tests.releases import ReleaseError, fetch

CHECKED, REPAIRED = "5.23.0", "4.52.4"
"""The release that `check` reads, and the one that `apply` rewrites."""
MEGABYTE = 10**6
PARSING = Target(2.0)
"""How often `ast.parse` of the same files `check` may take."""
LARGEST = Target(600.0)
"""The megabytes of the largest process of `check` and `apply`."""
HEAVY = ("torch", "transformers")
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
_405B = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128}
SHAPES: dict[str, tuple[dict[str, Any], int, float, float | None]] = {
    "Llama 8B": ({**_LLAMA, **_8B}, 8192, 15.0, 1000.0),
    "Llama 405B": ({**_LLAMA, **_405B}, 8192, 60.0, None),
    "DeepSeek-V3": ({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}, 4096, 60.0, None),
}
"""What `explain` is asked for: a configuration, tokens, and the most seconds and megabytes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 where a target is missed, 2 where it could not run."""
    parser = option_parser("speed", __doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"only some of {', '.join(COMMANDS)}")
    options = parser.parse_args(arguments)
    if unknown := set(options.commands) - set(COMMANDS):
        parser.error(f"{min(unknown)} is none of {', '.join(COMMANDS)}")
    measured: list[Figure] = []
    try:
        for name in options.commands or COMMANDS:
            with tempfile.TemporaryDirectory(prefix="speed-") as scratch:
                measured += COMMANDS[name](Path(scratch))
    except (ReleaseError, CommandFailed) as error:
        print(f"speed: {error}.", file=sys.stderr)
        return 2
    return finish("speed", measured, document(measured), options.out)


def ours(*words: str | Path, cache: Path, accept: tuple[int, ...] = (0,), **environment: str) -> Run:
    """Run one command of this project, with a cache of its own."""
    print(f"speed: {words[0]}", file=sys.stderr, flush=True)
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    more = {"PYTHONPATH": places, "CKPT_SURGERY_CACHE": str(cache), **environment}
    return measure([sys.executable, "-m", "ckpt_surgery", *words], environment=more, accept=accept, keep=10**6)


def check(scratch: Path) -> Iterator[Figure]:
    """Time `check` without and with its cache, beside `ast.parse` of the files that it reads."""
    from ckpt_surgery.static.discover import discover, read_sources

    folder = fetch(CHECKED) / "models"
    texts = [source.text for source in read_sources(discover([folder])[0])[0]]
    start = perf_counter()
    for text in texts:
        with contextlib.suppress(SyntaxError):
            ast.parse(text)
    parsing = perf_counter() - start
    words = ("check", "--jobs", "2", "--exit-zero", folder)
    cold, warm = (ours(*words, cache=scratch, accept=(0, 2)) for _ in range(2))  # 2 where a file does not parse
    yield Figure("check, cold", (cold.seconds,), "s")
    yield Figure("check, warm", (warm.seconds,), "s", Target(1.0))
    yield Figure("check, cold / ast.parse", (cold.seconds / parsing,), "x", PARSING)
    yield Figure("check, cold: largest process", (cold.peak / MEGABYTE,), "MB", LARGEST)


def apply(scratch: Path) -> Iterator[Figure]:
    """Time `apply` on a copy."""
    folder = scratch / "transformers"
    shutil.copytree(fetch(REPAIRED), folder, ignore=shutil.ignore_patterns("__pycache__"))
    # It ends with 1 where it leaves repairs that only `--unsafe` makes.
    run = ours("apply", "--jobs", "2", folder, cache=scratch / "cache", accept=(0, 1, 2))
    yield Figure("apply", (run.seconds,), "s")
    yield Figure("apply: largest process", (run.peak / MEGABYTE,), "MB", LARGEST)


def help_(scratch: Path) -> Iterator[Figure]:
    """Time `--help`. Raises CommandFailed where it imports what is heavy."""
    run = ours("--help", cache=scratch)
    imports = ours("--help", cache=scratch, PYTHONPROFILEIMPORTTIME="1").errors
    names = {line.rpartition("|")[2].strip() for line in imports.splitlines()}
    if heavy := [name for name in HEAVY if name in names]:
        raise CommandFailed(f"`ckpt_surgery --help` imports {' and '.join(heavy)} and must do without")
    yield Figure("--help", (run.seconds,), "s", Target(0.3))


def verify(scratch: Path) -> Iterator[Figure]:
    """Time `verify` of one model type, and of a twentieth of them all."""
    output = scratch / "report.json"
    words = ("--jobs", "2", "--exit-zero", "--output-format", "json", "--output", output)
    one = ours("verify", "gpt_bigcode", *words, cache=scratch)
    yield Figure("verify gpt_bigcode", (one.seconds,), "s", Target(15.0))
    many = ours("verify", "--all", "--shard", "1/20", *words, cache=scratch, accept=(0, 2))
    reports = json.loads(output.read_text(encoding="utf-8"))["reports"]
    yield Figure("verify --all --shard 1/20", (many.seconds,), "s")
    yield Figure("verify: classes a minute", (60 * len(reports) / many.seconds,), "1/min")


def explain(scratch: Path) -> Iterator[Figure]:
    """Time `explain` of each of the shapes."""
    for name, (config, tokens, seconds, megabytes) in SHAPES.items():
        text = json.dumps({"torch_dtype": "bfloat16", **config})
        (scratch / "config.json").write_text(text, encoding="utf-8")
        run = ours("explain", scratch, "--tokens", str(tokens), cache=scratch / "cache")
        yield Figure(f"explain {name}", (run.seconds,), "s", Target(seconds))
        limit = None if megabytes is None else Target(megabytes)
        yield Figure(f"explain {name}: memory", (run.peak / MEGABYTE,), "MB", limit)


COMMANDS: dict[str, Callable[[Path], Iterator[Figure]]] = {
    "check": check,
    "apply": apply,
    "help": help_,
    "verify": verify,
    "explain": explain,
}
if __name__ == "__main__":
    sys.exit(main())
