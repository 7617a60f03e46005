"""The checks of this project: lint, types, the pages, the static half without torch, and all tests.

An environment is installed once, and again only when its requirements or constraints have changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "docs", "tests_5", "tests_4"]

ROOT = Path(__file__).parent
ANCHORS = {"peft": "0.21.2", "accelerate": "1.15.0", "trl": "1.16.0"}
"""The libraries that `make figures` compares the project with."""
TORCH = "torch==2.13.0"
RELEASES = {
    "4.52.4": "transformers-4.52-to-4.55",
    "4.53.3": "transformers-4.52-to-4.55",
    "4.55.4": "transformers-4.52-to-4.55",
    "5.0.0": "transformers-5.0-to-5.10",
    "5.10.4": "transformers-5.0-to-5.10",
    "5.23.0": "transformers-5",
}
"""The releases of transformers that `make releases` tries, with the constraints of each: the oldest, the newest, and
those between in which classes behaved differently."""
FLOORS = ("2.8.0", "4.52.4")
"""The oldest torch and transformers that are supported: `TESTED` in ckpt_surgery/optional.py."""
LIBRARIES = (
    "diffusers",
    "open_clip_torch",
    "sentence-transformers",
    "timm",
    "torchao",  # torchtune cannot be imported without it
    "torchtune",
    "torchvision",
    "x-transformers",
)
"""The libraries whose models `nox -s stacks` wraps."""
TRAINERS = ("bitsandbytes", "diffusers", "lightning", "sentence-transformers", "torchao", "trl")
"""What `nox -s integrations` trains with, besides accelerate and PEFT."""
TYPED = ("ckpt_surgery", "benchmarks", "docs", "examples", "tests", "noxfile.py")
STATIC_TESTS = (
    *(f"tests/{folder}" for folder in ("cli", "codemods", "model_patches", "static")),
    *(
        f"tests/test_{name}.py"
        for name in ("init", "layout", "make", "markdown", "optional", "packaging", "project", "property")
    ),
)
"""What `make check` tests, in an environment without torch: the half that needs none."""
FLOOR_TESTS = (
    *STATIC_TESTS,
    *(f"tests/runtime/{folder}" for folder in ("blocks", "offload", "self_check", "tools")),
    "tests/runtime/checkpoint/test_recompute.py",
    "tests/guarding",
    "tests/report",
)
"""What is tested with the oldest torch and transformers. Other tests expect what only later releases do."""
TORCH_ALONE = (
    "tests/long_sequences/test_lazy_logits.py",
    "tests/measure/test_restore.py",
    "tests/runtime/offload",
    "tests/runtime/test_offload_steps.py",
    "tests/test_flops.py",
    "tests/test_undo.py",
)
"""Tests that do not load transformers. `tests_4` has the torch of `tests_5`, and leaves them out."""

TEST_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # test workers share the machine
    "PYTHONDONTWRITEBYTECODE": None,  # unset: pip compiles nothing, so the first import of torch writes the bytecode
    "TOKENIZERS_PARALLELISM": "false",
}


@nox.session
def lint(session: nox.Session) -> None:
    """Check the rules and the formatting of ruff."""
    install(session, "base", "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types, strictly. torch is installed because its types matter to the runtime half."""
    install(session, "base", TORCH, "mypy", "nox", project="test")
    session.run("mypy", *TYPED)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, strictly: a link that leads nowhere or a page that is out of date is an error."""
    install(session, "docs", project="docs")
    session.run("python", "-m", "docs.generate", "--check")
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})  # --quiet would hide what counts


@nox.session
def demo(session: nox.Session) -> None:
    """Show bytes, seconds and gradients of well-known models, with and without `wrap_blocks`."""
    install(session, "transformers-5", TORCH, "transformers==5.23.0", project="torch")
    session.run("python", "-m", "benchmarks.demo", env=TEST_ENVIRONMENT)


@nox.session
def static(session: nox.Session) -> None:
    """Run the tests of the static half and of the packaging, without torch and transformers."""
    install(session, "base", project="static-test")
    run_tests(session, "not slow", *STATIC_TESTS)


@nox.session
def tests_5(session: nox.Session) -> None:
    """Run every test but those that need transformers 4 installed."""
    install(session, "transformers-5", TORCH, "transformers==5.23.0", project="test")
    run_tests(session, "not transformers4")


@nox.session
def tests_4(session: nox.Session) -> None:
    """Run the tests that need transformers 4 installed, and those that run under both releases and use it."""
    install(session, "transformers-4", TORCH, "transformers==4.57.6", project="test")
    run_tests(session, "transformers4 or both", *(f"--ignore={path}" for path in TORCH_ALONE))


@nox.session
def floors(session: nox.Session) -> None:
    """Run the static tests, and those that run under transformers 4 and 5, with the oldest torch and transformers."""
    install(session, RELEASES[FLOORS[1]], f"torch=={FLOORS[0]}", f"transformers=={FLOORS[1]}", project="test")
    run_tests(session, "not slow and not transformers4", *FLOOR_TESTS)


@nox.session
@nox.parametrize("release", list(RELEASES), ids=list(RELEASES))
def releases(session: nox.Session, release: str) -> None:
    """Try the most used classes under one release of transformers: a column of docs/coverage/releases.md."""
    install(session, RELEASES[release], TORCH, f"transformers=={release}", "pillow", "scipy", project="torch")
    session.run("python", "-m", "benchmarks.release_table", env=TEST_ENVIRONMENT)


@nox.session
def release(session: nox.Session) -> None:
    """Try everything on one release of transformers, and of torch if one is given: its page in docs/coverage."""
    if not session.posargs:
        session.error("name a release of transformers, as in `nox -s release -- 5.24.0`, and a torch after it")
    transformers, torch, *_ = (*session.posargs, TORCH.partition("==")[2])
    install(session, "", f"torch=={torch}", f"transformers=={transformers}", project="test")
    session.run("python", "-m", "benchmarks.release", env=TEST_ENVIRONMENT)


@nox.session
def stacks(session: nox.Session) -> None:
    """Try `wrap_blocks` on models of other libraries: docs/coverage/stacks.md."""
    install(session, "stacks", TORCH, "transformers==5.23.0", *LIBRARIES, project="torch")
    session.run(
        "python",
        "-m",
        "benchmarks.stacks",
        "out/stacks.jsonl",
        "--again",
        "--page",
        *session.posargs,
        env=TEST_ENVIRONMENT,
    )


@nox.session
def integrations(session: nox.Session) -> None:
    """Run trainings of other packages, with `run` and with the callbacks, and the Triton kernel in its interpreter."""
    install(session, "integrations", TORCH, "transformers==5.23.0", *TRAINERS, "triton", project="test")
    run_tests(session, "not transformers4", "tests/integrations", "tests/runtime/self_check/test_digests.py")


@nox.session
@nox.parametrize("major", [5, 4], ids=["5", "4"])
def cases(session: nox.Session, major: int) -> None:
    """Run trainings that went wrong for somebody, each by the commands that should report or repair it."""
    release, *more = ("5.23.0", "diffusers") if major == 5 else ("4.57.6",)
    install(session, f"transformers-{major}", TORCH, f"transformers=={release}", *more, project="test")
    session.run("python", "-m", "benchmarks.cases", *session.posargs, env=TEST_ENVIRONMENT)


@nox.session
def faults(session: nox.Session) -> None:
    """Run CKPT-Bench, which counts the reported faults that each tool finds, and write docs/coverage/faults.md."""
    install(session, "transformers-5", TORCH, "transformers==5.23.0", "transformers-mlinter==0.1.5", project="test")
    session.run("python", "-m", "benchmarks.faults", *session.posargs, env=TEST_ENVIRONMENT)


@nox.session
def figures(session: nox.Session) -> None:
    """Measure how dense the source is, beside three libraries whose files are read and not run."""
    session.install("--quiet", "--no-deps", *(f"{name}=={version}" for name, version in ANCHORS.items()))
    session.run("python", "-m", "benchmarks.source_figures", *ANCHORS)


def run_tests(session: nox.Session, markers: str, *paths: str) -> None:
    """Run the tests that `paths` name and the marker expression selects; if there are none, that is a failure.

    There are three workers: even on two cores a third one pays, because many tests wait for processes.

    `paths` may include options of pytest. What follows `--` on the command line of nox takes their place.
    """
    spread = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")  # tests/conftest.py orders the files
    selection = (*spread, "--fail-if-none-ran", "-m", markers)
    session.run("python", "-m", "pytest", *selection, *(session.posargs or paths), env=TEST_ENVIRONMENT)


def install(session: nox.Session, constraints: str, *requirements: str, project: str = "") -> None:
    """Install `requirements`, and the project with the extra named `project`, unless that was done before.

    Without `constraints`, dependencies are the newest that these allow.
    """
    stamp = Path(session.virtualenv.location) / "installed.sha256"
    wanted = digest(requirements, project)
    if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
        session.log("The environment is up to date.")
        return
    stamp.unlink(missing_ok=True)
    pip = ("python", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
    constraint = ("--constraint", f"constraints/{constraints}.txt") if constraints else ()
    done = session.run_install(*pip, *constraint, "setuptools", *requirements)
    if project:
        done = session.run_install(*pip, *constraint, "--no-build-isolation", "--editable", f".[{project}]")
    if done:  # `nox --no-install` leaves out the installation, and the stamp must not claim it
        stamp.write_text(wanted, encoding="ascii")


def digest(requirements: tuple[str, ...], project: str) -> str:
    """Return a sha256 over everything that decides what is installed."""
    sources = [ROOT / "pyproject.toml", *sorted(ROOT.glob("constraints/*.txt"))]
    parts = [*requirements, project, *(path.read_text(encoding="utf-8") for path in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
