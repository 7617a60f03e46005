"""What README.md and CHANGELOG.md say is so: their commands run, and the names in them exist.

Everything runs in a small transformers checkout that is written here. The checker is also run on broken snippets.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

import ckpt_surgery
from benchmarks.releases import CACHE_VARIABLE
from ckpt_surgery.cli.config import _READERS as CONFIGURATION_KEYS
from ckpt_surgery.cli.config import OutputFormat
from ckpt_surgery.cli.main import main
from ckpt_surgery.cli.verify import VerifyFormat
from ckpt_surgery.codemods import RULES
from ckpt_surgery.static import check as analyze
from ckpt_surgery.static import commands
from ckpt_surgery.static.results import CheckResult
from tests.conftest import installed_major
from tests.upstream.released import repository

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
MODELS = "src/transformers/models"
CODES = {rule.code for rule in RULES}
REPAIRED = {"Safe": "yes", "Unsafe": "with `--unsafe`", "Reported": "reported"}
"""What the rules table says, by the first word of a rule's own section on fix safety."""

DOCUMENTS = ("body.md", "evidence.md", "siblings.md")
"""What `ckpt_surgery pr` writes."""
CACHE = os.environ.get(CACHE_VARIABLE)

CALL = "hidden_states = layer(hidden_states, mask, encoder_hidden_states=memory)"
FOO = f"""\
from torch import nn

from ...modeling_utils import PreTrainedModel


class FooLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention(config)

    def forward(self, hidden_states, attention_mask=None, encoder_hidden_states=None):
        return hidden_states + self.self_attn(hidden_states, attention_mask, encoder_hidden_states)


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_layers)])
        self.gradient_checkpointing = False

    def forward(self, hidden_states, mask, memory):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, mask)
            else:
                {CALL}
        return hidden_states
"""
LAYERS = """\
from torch import nn


class GradientCheckpointingLayer(nn.Module):
    gradient_checkpointing = False
"""
FILES = {
    f"{MODELS}/foo/modeling_foo.py": FOO,
    "src/transformers/modeling_layers.py": LAYERS,
    "my_model/modeling_my.py": FOO.replace("...modeling_utils", "transformers"),
    "my_config/config.json": json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
    "my_models.py": """\
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def gradient_checkpointing_enable(self, options): ...
    def forward(self, values):
        return self.linear(values)

def make():
    return Mine(), {"values": torch.ones(1, 2)}
""",
    "my_remote_model/config.json": json.dumps(
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.MineConfig", "AutoModel": "mine.MineModel"}}
    ),
    "my_remote_model/mine.py": """\
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

class MineConfig(PretrainedConfig):
    model_type = "mine"

class MineLayer(GradientCheckpointingLayer):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden_states):
        return torch.tanh(self.linear(hidden_states))

class MineModel(PreTrainedModel):
    config_class = MineConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(64, 8)
        self.layers = nn.ModuleList([MineLayer(), MineLayer()])
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, input_ids):
        hidden_states = self.embed(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return (hidden_states,)
""",
}


@dataclass(frozen=True)
class Block:
    """A fenced code block: its language and its text."""

    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A line behind `$ ` in a console block, and what is shown below it."""

    line: str
    shown: tuple[str, ...]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout as the working folder; "the installed transformers" is the one in it."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(analyze, "installed_models", lambda: Path(MODELS))
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    plant()
    return tmp_path / "checkout"


def plant() -> None:
    """Write the checkout into the working folder, over whatever a command made of it."""
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def fenced(text: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\S*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def console(text: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *shown = part.rstrip("\n").split("\n")
        yield Command(line, tuple(shown))


def faults(text: str) -> list[str]:
    """What a document says and what is not so, one sentence each."""
    found = [f"no rule {code}" for code in re.findall(r"\bCKPT\d+\b", text) if code not in CODES | {"CKPT0"}]
    for block in fenced(text):
        plant()
        found += CHECKERS[block.language](block.text) if block.language in CHECKERS else [f"what is {block.language}?"]
    plant()
    words = prose(text)
    found += [f"no option {name}" for name in re.findall(r"(?<![\w-])--[a-z][a-z-]*", words) if name not in options()]
    names = re.findall(r"`([^`\n]+)`", words)
    paths = [name for name in names if re.fullmatch(r"(?!out/)\w+/[\w./-]*|[\w./-]+\.(py|toml|yaml|md)", name)]
    paths = [path for path in paths if path not in DOCUMENTS]
    paths += [link for link in re.findall(r"\]\(([^)]+)\)", words) if not link.startswith("https://")]
    found += [f"no file {path}" for path in paths if not (ROOT / path).exists()]
    found += [f"nothing reads {name}" for name in re.findall(r"\bCKPT_SURGERY_\w+", text) if name != CACHE_VARIABLE]
    return found


@cache
def options() -> frozenset[str]:
    """All options of the command line."""
    texts = [ours(name, "--help")[1] for name in ("check", "apply", "rule", "verify", "pr")] + [ours("--help")[1]]
    texts.append(
        " ".join(re.findall(r"--ckpt-[a-z]+", process("-m", "pytest", "-p", "no:cacheprovider", "--help")[1]))
    )
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(texts)))


def ours(*arguments: str) -> tuple[int, str]:
    """Run the command line in this process: its exit code and all that it printed."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(arguments)
    return code, out.getvalue() + error.getvalue()


def process(*words: str) -> tuple[int, str]:
    """Run a Python command in a process of its own."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    # in continuous integration pytest shortens no line of its summary
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}  # torchrun warns where the number is not set
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def command_faults(line: str, shown: tuple[str, ...] = ()) -> list[str]:
    """Run one command, or check it without running it where it would take minutes."""
    match shlex.split(line):
        case ["ckpt_surgery", "verify", *arguments] if "--all" in arguments:
            arguments = [word for word in arguments if not re.fullmatch(r"--shard|\d+/\d+", word)]
            code, printed = ours("verify", *arguments, "--shard", "1/1500")
            return [] if code in (0, 1) else [f"{line}: {printed}"]
        case ["ckpt_surgery", "pr", checkout, *arguments]:
            with pytest.MonkeyPatch.context() as patch:
                if CACHE is None:
                    patch.delenv(CACHE_VARIABLE)
                else:
                    patch.setenv(CACHE_VARIABLE, CACHE)
                repository("5.23.0", Path(checkout))
                code, printed = ours("pr", checkout, *arguments)
            return [] if code == 0 and fits(shown, printed) else [f"{line} prints {printed}"]
        case ["ckpt_surgery", *arguments]:
            code, printed = ours(*arguments)
            found = [f"{line}: {printed}"] if code not in (0, 1) else []
            return found if fits(shown, printed) else [*found, f"{line} prints {printed}"]
        case ["pytest", *arguments]:
            code, printed = process("-m", "pytest", "-p", "no:cacheprovider", *arguments)
            found = [f"{line}: {printed}"] if code not in (0, 1) else []
            return found if fits(shown, printed) else [*found, f"{line} prints {printed}"]
        case ["torchrun", *options, script] if (ROOT / script).is_file():
            code, printed = process("-m", "torch.distributed.run", *options, str(ROOT / script))
            return [] if code == 0 and fits(shown, printed) else [f"{line} prints {printed}"]
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            known = re.findall(r"^([a-z]+):.*##", makefile, re.MULTILINE)
            return [f"no target {target}" for target in targets or ["none"] if target not in known]
        case ["python", "-m", "pip", "install", what]:
            return [] if what in ("git+ADDRESS", ".") else [f"nobody knows how to install {what}"]
        case ["python", "-m", "libcst.tool", *arguments]:
            code, printed = process("-m", "libcst.tool", *arguments)
            changed = any(Path(name).read_text() != text for name, text in FILES.items())
            return [] if code == 0 and changed else [f"{line}: {printed}"]
        case ["python", script, *arguments] if (ROOT / script).is_file() and script.startswith("benchmarks/"):
            code, printed = process(str(ROOT / script), *arguments, "--help")
            known = re.findall(r"--[a-z-]+", printed)
            unknown = [word for word in arguments if word.startswith("--") and word not in known]
            return [f"{line}: {printed}"] if code or unknown else []
    return [f"not known: {line}"]


def fits(shown: tuple[str, ...], printed: str) -> bool:
    """Whether `printed` is what is shown: `...` stands for any lines, and every time in seconds for any other."""
    if not shown:
        return True
    patterns = (r"(?:.*\n)*?" if line == "..." else re.escape(line.rstrip()) + r"\s*\n" for line in shown)
    pattern = re.sub(r"\d+\\\.\d\\ s", r"\\d+\\.\\d s", "".join(patterns))
    return re.fullmatch(pattern, printed) is not None


def console_faults(text: str) -> list[str]:
    found = [] if text.startswith("$ ") else [f"no command: {text}"]
    for command in console(text):
        plant()
        found += command_faults(command.line, command.shown)
    return found


def python_faults(text: str) -> list[str]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(text, "README.md", "exec"), {})
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return [] if printed.getvalue() else ["the Python example prints nothing"]


def suppression_faults(text: str) -> list[str]:
    """A line of a model with a comment: in the place of the same line without one it takes one finding out."""
    file = Path(MODELS) / "foo/modeling_foo.py"
    before = checked(file)
    file.write_text(FOO.replace(CALL, text.strip()))
    after = checked(file)
    fewer = len(before.findings) - len(after.findings)
    return [] if (fewer, after.suppressed, after.problems) == (1, 1, ()) else [f"takes out {fewer} findings: {text}"]


def checked(file: Path) -> CheckResult:
    return ckpt_surgery.check([file])


def toml_faults(text: str) -> list[str]:
    Path("pyproject.toml").write_text(text)
    try:
        code, printed = ours("check", MODELS)
    finally:
        Path("pyproject.toml").unlink()
    return [printed] if code == 2 or "ckpt_surgery" not in tomllib.loads(text)["tool"] else []


def yaml_faults(text: str) -> list[str]:
    document = yaml.safe_load(text)
    known = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    hooks = [hook["id"] for repository in document.get("repos", ()) for hook in repository["hooks"]]
    steps = [step for job in document.get("jobs", {}).values() for step in job["steps"]]
    found = [] if hooks or steps else ["neither hooks nor steps"]
    found += [f"no hook {hook}" for hook in hooks if hook not in known]
    for step in steps:
        found += command_faults(step["run"]) if "run" in step else []
        uploaded = step.get("with", {}).get("sarif_file")
        found += [f"no step writes {uploaded}"] if uploaded and not Path(uploaded).is_file() else []
    return found


def session_faults(text: str) -> list[str]:
    """An interpreter session, held against what it prints; it shows what transformers 4 does, and runs there."""
    if installed_major("transformers") != 4:
        return []
    examples = doctest.DocTestParser().get_doctest(text, {}, "README.md", None, None)
    said = io.StringIO()
    doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(examples, out=said.write)
    return [said.getvalue()] if said.getvalue() or not examples.examples else []


CHECKERS = {
    "console": console_faults,
    "py": suppression_faults,
    "pycon": session_faults,
    "python": python_faults,
    "toml": toml_faults,
    "yaml": yaml_faults,
}


@pytest.mark.torch
@pytest.mark.slow
def test_all_that_the_readme_says_is_so() -> None:
    assert faults(README) == []


@pytest.mark.transformers4
def test_the_session_with_transformers_4_is_so() -> None:
    (session,) = [block.text for block in fenced(README) if block.language == "pycon"]
    assert session_faults(session) == []
    assert session_faults(session.replace("4 of 4", "3 of 4"))
    assert session_faults("no session")


def test_all_that_the_changelog_says_is_so() -> None:
    assert faults(CHANGELOG) == []
    assert f"## [{ckpt_surgery.__version__}]" in CHANGELOG


@pytest.mark.parametrize(
    ("language", "text", "fault"),
    [
        ("console", "$ ckpt_surgery chekc src\n", "No such command"),
        ("console", "$ ckpt_surgery check --selct CKPT003 src\n", "No such option"),
        ("console", "$ ckpt_surgery check src --select CKPT03\n", "no rule has the code"),
        ("console", "$ ckpt_surgery check nowhere\n", "does not exist"),
        ("console", "$ ckpt_surgery rule CKPT011\n", "no rule CKPT011"),
        ("console", f"$ ckpt_surgery check {MODELS}\nfoo: 9 findings\n...\n", "foo: 2 findings"),
        ("console", f"$ ckpt_surgery check {MODELS}\nfoo: 2 findings\n", "foo: 2 findings"),
        ("console", "$ ckpt_surgery verify --all --shrad 1/4\n", "No such option"),
        ("console", "$ make dmeo\n", "no target dmeo"),
        ("console", "$ torchrun --nproc-per-node 2 examples/one_gpu.py\n", "not known"),
        ("console", "$ torchrun --nproc-per-nodes 2 examples/several_gpus.py\n", "unrecognized arguments"),
        ("console", "$ python -m pip install .[cuda]\n", "install .[cuda]"),
        ("console", "$ python benchmarks/reply.py 4.52.4 4.53.0\n", "not known"),
        ("console", "$ python benchmarks/replay.py 1.0.0 4.53.0\n", "invalid choice"),
        ("console", "$ python benchmarks/replay.py 4.52.4 4.53.0 --jsn x\n", "usage: replay"),
        ("console", f"$ python -m libcst.tool codemod -x ckpt_surgery.static.commands.Fix {MODELS}\n", "Fix"),
        ("console", "$ ckpt-surgeon check\n", "not known"),
        ("console", "ckpt_surgery check\n", "no command"),
        ("python", "from ckpt_surgery import chek\n", "ImportError"),
        ("python", f"import ckpt_surgery\nprint(ckpt_surgery.apply(['{MODELS}'], wirte=False))\n", "TypeError"),
        ("python", f"import ckpt_surgery\nckpt_surgery.check(['{MODELS}'])\n", "prints nothing"),
        ("py", f"{CALL}  # ckpt: ignore[CKPT004] the wrong one\n", "takes out 0"),
        ("py", f"{CALL}  # ckpt: ignroe[CKPT003] misspelt\n", "takes out 0"),
        ("toml", '[tool.ckpt_surgery]\nselct = ["CKPT0"]\n', "did you mean select"),
        ("toml", '[tool.ckpt_surgery]\nselect = ["CKPT2"]\n', "no rule has the code"),
        ("toml", "[tool.other]\n", "Checked"),
        ("yaml", "repos: [{repo: A, rev: B, hooks: [{id: ckpt-surgery-fix}]}]\n", "no hook ckpt-surgery-fix"),
        ("yaml", "jobs: {a: {steps: [{run: ckpt_surgery check src --format json}]}}\n", "No such option"),
        ("yaml", "jobs: {a: {steps: [{uses: x, with: {sarif_file: a.sarif}}]}}\n", "no step writes a.sarif"),
        ("yaml", "other: 1\n", "neither hooks nor steps"),
        ("bash", "ckpt_surgery check\n", "what is bash?"),
    ],
)
def test_a_broken_code_block_is_seen(language: str, text: str, fault: str) -> None:
    assert fault in "\n".join(faults(f"Words.\n\n```{language}\n{text}```\n"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("It finds CKPT011.", "no rule CKPT011"),
        ("Use `check --stats`.", "no option --stats"),
        ("See `benchmarks/speed.py`.", "no file benchmarks/speed.py"),
        ("It lies in `model_patch/`.", "no file model_patch/"),
        ("See [the guide](docs/guide.md).", "no file docs/guide.md"),
        ("Set `CKPT_SURGERY_JOBS`.", "nothing reads CKPT_SURGERY_JOBS"),
    ],
)
def test_a_name_that_does_not_exist_is_seen(text: str, fault: str) -> None:
    assert faults(text) == [fault]


def rules_table(text: str) -> list[tuple[str, ...]]:
    """Code, name and whether it is repaired, of each row."""
    return re.findall(r"^\| (CKPT\d+) \| `(\w+)` \| .* \| (.*) \|$", text, re.MULTILINE)


def test_the_rules_table_is_that_of_the_rules() -> None:
    safety = [re.findall(r"## Fix safety\n(\w+)", rule.documentation)[0] for rule in RULES]
    expected = [(rule.code, rule.name, REPAIRED[word]) for rule, word in zip(RULES, safety, strict=True)]
    assert rules_table(README) == expected
    assert rules_table(README.replace("| CKPT004 |", "| CKPT104 |")) != expected


def test_no_option_key_or_format_is_left_out() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README)) | {"--help", "--version"}
    assert {name for name in options() if not name.startswith("--no-")} - named == set()
    (table,) = [block.text for block in fenced(README) if block.language == "toml"]
    assert set(tomllib.loads(table)["tool"]["ckpt_surgery"]) == set(CONFIGURATION_KEYS)
    sentences = re.findall(r"`--output-format` is (.*?)[.(]", README)
    assert [set(re.findall(r"`(\w+)`", sentence)) for sentence in sentences] == [set(OutputFormat), set(VerifyFormat)]


def test_the_libcst_commands_are_those_that_exist() -> None:
    (section,) = re.findall(r"^## libcst\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    existing = {name for name, value in vars(commands).items() if isinstance(value, type) and name[0].isupper()}
    ours = {name for name in existing if issubclass(vars(commands)[name], commands.RepairAll)}
    assert set(re.findall(r"`([A-Z]\w+)`", section)) == ours


def test_the_versions_that_are_installed_are_those_that_are_named() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    for pin in re.findall(r"`(torch==[\d.]+)`", README):
        assert f'"{pin}"' in noxfile
    (versions,) = re.findall(r"once with transformers ([\d.]+) and once with ([\d.]+)\. ", README.replace("\n", " "))
    assert set(versions) == set(re.findall(r"transformers==([\d.]+)", noxfile))
