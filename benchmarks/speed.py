"""How fast are the commands, and how much memory do they take? Each as a user runs it.

    python -m benchmarks.speed

`check` on a release of transformers, beside `ast.parse` of the same files; `explain` on the shapes of Llama 8B and
405B and of DeepSeek-V3. Prints a table of figures and targets; writes json. Takes about five minutes on two idle
cores. Exits with 1 where a target is missed.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.figures import ROOT, Figure, Target, document, finish, option_parser
from benchmarks.plan_on_gpu import MODELS, config_of
from benchmarks.stopwatch import CommandFailed, Run, measure
from tests.releases import ReleaseError, fetch

CHECKED = "5.23.0"
"""The release that `check` reads."""
MEGABYTE = 10**6
PARSING = Target(2.0)
"""How often `ast.parse` of the same files `check` may take."""
LARGEST = Target(600.0)
"""The megabytes of the largest process of `check`."""
_DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
_405B = config_of("LlamaForCausalLM", 126, 16384, 53248, 128, model_type="llama", tie_word_embeddings=False)
SHAPES: dict[str, tuple[Mapping[str, Any], int, float, float | None]] = {
    "Llama 8B": (MODELS["Llama 8B"], 8192, 15.0, 1000.0),
    "Llama 405B": (_405B, 8192, 60.0, None),
    "DeepSeek-V3": (_DEEPSEEK, 4096, 60.0, None),
}
"""What `explain` is asked for: a configuration, tokens, and the most seconds and megabytes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 where a target is missed, 2 where it could not run."""
    options = option_parser("speed", __doc__).parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="speed-") as scratch:
            measured = [*check(Path(scratch)), *explain(Path(scratch))]
    except (ReleaseError, CommandFailed) as error:
        print(f"speed: {error}.", file=sys.stderr)
        return 2
    return finish(measured, document(measured), options.out)


def ours(*words: str | Path, cache: Path, accept: tuple[int, ...] = (0,)) -> Run:
    """Run one command of this project, with a cache of its own."""
    print(f"speed: {words[0]}", file=sys.stderr, flush=True)
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    more = {"PYTHONPATH": places, "CKPT_SURGERY_CACHE": str(cache)}
    return measure([sys.executable, "-m", "ckpt_surgery", *words], environment=more, accept=accept)


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


def explain(scratch: Path) -> Iterator[Figure]:
    """Time `explain` of each of the shapes."""
    for name, (config, tokens, seconds, megabytes) in SHAPES.items():
        text = json.dumps({"torch_dtype": "bfloat16", **config})
        (scratch / "config.json").write_text(text, encoding="utf-8")
        run = ours("explain", scratch, "--tokens", str(tokens), cache=scratch / "cache")
        yield Figure(f"explain {name}", (run.seconds,), "s", Target(seconds))
        limit = None if megabytes is None else Target(megabytes)
        yield Figure(f"explain {name}: memory", (run.peak / MEGABYTE,), "MB", limit)


if __name__ == "__main__":
    sys.exit(main())
