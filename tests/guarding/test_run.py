"""`run` runs a script as Python does, wraps the models it trains, and reports at the end.

`run` and `python` start new processes; `train` and `forked` fork one that has imported torch.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_python import ROOT, python_environment, run_python

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PLAIN = """
import sys
print(__name__, sys.argv, sys.path[0], "torch" in sys.modules)
"""

TRAIN = """
import os, sys
from torch import nn
import torch

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.second = nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)
        self.attention = nn.Identity()
    def forward(self, x):
        return x + self.second(self.act(self.first(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gradient_checkpointing = False
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x

torch.manual_seed(0)
model = Model()
model.gradient_checkpointing = "on" in sys.argv
if "evaluating" in sys.argv:
    model.blocks[1].eval()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
{end}
"""


def script(folder: Path, text: str = TRAIN, end: str = "", name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text.replace("{end}", end), encoding="utf-8")
    return path


def python(*arguments: object, cwd: Path = ROOT, said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        input=said,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(*arguments: object, cwd: Path = ROOT, said: str = "") -> subprocess.CompletedProcess[str]:
    return python("-m", "ckpt_surgery", "run", *arguments, cwd=cwd, said=said)


def forked(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(*map(str, arguments), cwd=ROOT, environment=python_environment(**environment), timeout=120)


def train(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked("-m", "ckpt_surgery", "run", *arguments, **environment)


SPAWNING = """
import multiprocessing, sys
def work(): print(__name__, sys.argv, "torch" in sys.modules)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    print(child.exitcode)
"""
SCRIPTS = {
    "arguments and the path": PLAIN,
    "its own place": "import os\nos.chdir('/')\nprint(__file__, __loader__.get_source('__main__'), __builtins__)\n",
    "what is typed": "import sys\nprint(input(), sys.stdin.isatty(), sys.stdin.read())\n",
    "a process that it spawns": SPAWNING,
    "a code to exit with": "raise SystemExit(7)\n",
    "a word to exit with": "raise SystemExit('bad')\n",
    "nothing to exit with": "import sys\nprint(1)\nsys.exit(print(2))\n",
    "an end without a traceback": "import os\nos._exit(5)\n",
    "an error": "def fail():\n    raise ValueError('boom')\n\nfail()\n",
    "an import of nothing": "import nothing_of_this_name\n",
    "a module that fails": "from helper import broken\n",
    "no Python": "def broken(:\n",
    "a signal": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_and_shows_what_it_does_without_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "helper.py").write_text("raise RuntimeError('no GPU here')\n")
    path = script(tmp_path, SCRIPTS[name])
    bare, ran = (way(path.name, "--every", "3", cwd=tmp_path, said="yes\nno\n") for way in (python, run))
    assert (ran.returncode, ran.stdout, ran.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert ran.stdout or ran.returncode


def test_an_interrupt_ends_it_as_it_ends_a_script(tmp_path: Path) -> None:
    path = script(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    assert run(path).returncode == python(path).returncode == -signal.SIGINT


def test_a_module_runs_with_what_follows_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text("import sys; print(__package__, __spec__.name, sys.argv[1:])\n")
    (package / "__init__.py").touch()
    bare, ran = python("-m", "package", "-m", "x", cwd=tmp_path), run("-m", "package", "-m", "x", cwd=tmp_path)
    assert ran.stdout == bare.stdout == "package package.__main__ ['-m', 'x']\n"


def test_a_model_that_is_switched_on_is_wrapped_proved_and_trains_the_same(tmp_path: Path) -> None:
    path, report = script(tmp_path), tmp_path / "report.json"
    bare, ran = forked(path, "on"), train("--report", report, path, "on")
    assert ran.stdout == bare.stdout
    assert "Model: 3 of 3 blocks checkpointed, non-reentrant" in ran.stderr
    assert "Model: 4 steps, 3 of 3 blocks proved" in ran.stderr
    (model,) = json.loads(report.read_text())["models"]
    assert (model["ok"], model["proved"], model["steps"]) == (True, 3, 4)


@pytest.mark.parametrize(("suffix", "begins"), [(".html", "<!doctype html>"), (".txt", "Model: 3 of 3 blocks")])
def test_the_report_is_written_as_its_suffix_says(tmp_path: Path, suffix: str, begins: str) -> None:
    report = tmp_path / f"report{suffix}"
    train("--report", report, script(tmp_path), "on")
    text = report.read_text()
    assert text.startswith(begins)
    assert "blocks.*" in text
    assert "10 recomputes compared" in text  # one block in the fourth step
    assert "<script" not in text


def test_a_model_that_never_asks_is_wrapped_only_with_the_option(tmp_path: Path) -> None:
    path = script(tmp_path)
    assert "Model trained without checkpointing; --wrap checkpoints it" in train(path).stderr
    assert "3 of 3 blocks checkpointed, non-reentrant" in train("--wrap", path).stderr
    saved = train("--wrap", "--save", "matmul:2", "--save", "aten.gelu", path).stderr
    assert "save matmul:2: 3 results in the last step" in saved
    assert "save aten.gelu: 3 results in the last step" in saved


def test_an_option_that_would_break_gradients_is_refused_and_training_runs(tmp_path: Path) -> None:
    path = script(tmp_path, TRAIN.replace("nn.Identity()", "nn.Dropout(0.1)"))
    ran = train("--wrap", "--no-preserve-rng-state", path)
    assert "would draw other numbers" in ran.stderr
    assert (ran.returncode, len(ran.stdout.split())) == (0, 4)


def test_without_wrapping_it_only_looks_and_tells_faults(tmp_path: Path) -> None:
    ran = train("--wrap", script(tmp_path), "evaluating")
    assert "fault: block blocks.1 ran in the forward, and no recompute followed" in ran.stderr
    assert "ckpt_surgery: 1 fault" in ran.stderr
    assert ran.returncode == 0, "the exit code is the script's"


def test_an_exception_in_the_middle_leaves_the_table(tmp_path: Path) -> None:
    ran = train(script(tmp_path, end="raise MemoryError('no more')"), "on")
    assert ran.returncode == 1
    assert re.search(r"MemoryError: no more\n.*3 of 3 blocks proved", ran.stderr, re.DOTALL)


def test_an_error_of_torch_that_is_known_gets_a_note_that_names_the_block(tmp_path: Path) -> None:
    text = TRAIN.replace(
        "return x + self",
        "self.runs = getattr(self, 'runs', 0) + 1; x = x.tanh() if self.runs > 1 else x; return x + self",
    )
    report, path = tmp_path / "report.json", script(tmp_path, text)
    bare, ran = forked(path, "on"), train("--no-wrap", "--report", report, path, "on")
    assert bare.returncode == ran.returncode == 1
    assert "CheckpointError" in bare.stderr
    assert json.loads(report.read_text())["error"].startswith("blocks.2 (Block) found other things")
    assert "ckpt_surgery: blocks.2 (Block) found other things in its recompute than in its forward" in ran.stderr
    assert "runs (nothing, and then 1)" in ran.stderr


def test_equal_models_are_reported_once(tmp_path: Path) -> None:
    text = TRAIN.replace("optimizer =", "import copy\nmodels = [copy.deepcopy(model) for _ in range(2)]\noptimizer =")
    text = text.replace(
        "    loss.backward()",
        "    loss.backward(); [each(torch.ones(2, 8)).square().mean().backward() for each in models]",
    )
    ran = train(script(tmp_path, text), "on")
    assert ran.stderr.count("4 steps, 3 of 3 blocks proved") == 1
    assert "ckpt_surgery: Model: the same for 2 more models" in ran.stderr


def test_after_an_exception_in_the_first_step_nothing_reads_like_a_finding(tmp_path: Path) -> None:
    ran = train(script(tmp_path, TRAIN.replace("    loss.backward()", "    raise MemoryError('no more')")), "on")
    assert ran.returncode == 1
    assert "Model: the script ended in its first step, of which nothing is known" in ran.stderr
    assert "proved" not in ran.stderr
    ran = train(script(tmp_path, "import torch\nraise MemoryError('no more')\n"))
    assert "the script ended before a model was trained in this process" in ran.stderr


def test_a_fork_that_runs_to_the_end_of_the_script_writes_no_second_table(tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    end = """
sys.stdout.flush()
child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(0 if child else 7)
"""
    ran = train("--report", report, script(tmp_path, end=end), "on")
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[-1] == "7"
    assert ran.stderr.count("blocks proved") == 1


def test_workers_of_the_script_write_no_second_table(tmp_path: Path) -> None:
    end = """
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(torch.arange(4), num_workers=2)
    print([int(batch) for batch in loader])
"""
    ran = train(script(tmp_path, end=end), "on")
    assert ran.stderr.count("blocks proved") == 1
    assert ran.stdout.count("[0, 1, 2, 3]") == 1


def test_only_the_first_rank_writes_a_table_and_others_their_faults(tmp_path: Path) -> None:
    path, report = script(tmp_path), tmp_path / "report.txt"
    assert train("--report", report, path, "on", RANK="1").stderr == ""
    assert not report.exists()
    ran = train("--wrap", path, "evaluating", RANK="1")
    assert ran.stderr.startswith("ckpt_surgery: rank 1: Model: block blocks.1 ran in the forward")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("spelled", ["--local_rank=1", "--local-rank=1"])
def test_an_argument_before_the_command_is_the_scripts_first(tmp_path: Path, spelled: str) -> None:
    path = script(tmp_path, PLAIN)
    ran = forked("-m", "ckpt_surgery", spelled, "run", path, "--every", "3")
    assert ran.stdout == forked(path, spelled, "--every", "3").stdout


def test_options_of_wrap_blocks_and_of_the_guard_arrive(tmp_path: Path) -> None:
    path = script(tmp_path)
    ran = train("--wrap", "--first", "blocks=2", "--self-check", "always", "--on-fault", "raise", path, "evaluating")
    assert re.search(r"Block +1 of 3 ", ran.stderr), "of two, one is in evaluation mode"
    assert "GuardError: Model: block blocks.1 ran in the forward" in ran.stderr
    assert ran.returncode == 1, "only where it was asked for"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no script to run: give a Python file"),
        ([""], "the script's path is empty, as from an unset variable: name a Python file"),
        (["nothing.py"], "nothing.py: No such file or directory: give a Python script"),
        (["-m", "no.such.module"], "there is no module no.such.module to run"),
        (["--every", "0", "train.py"], "'0' is not"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    ran = train(*arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_script_that_wraps_its_model_itself_is_only_watched(tmp_path: Path) -> None:
    text = TRAIN.replace("optimizer =", "import ckpt_surgery; ckpt_surgery.wrap_blocks(model)\noptimizer =")
    ran = train(script(tmp_path, text))
    assert "3 of 3 blocks proved" in ran.stderr
    assert "checkpointed, non-reentrant" not in ran.stderr


def test_a_compiled_model_is_left_as_it_is_with_a_line(tmp_path: Path) -> None:
    text = TRAIN.replace("optimizer =", "model = torch.compile(model, backend='eager')\noptimizer =")
    ran = train("--wrap", script(tmp_path, text))
    assert ran.returncode == 0
    assert "compiled" in ran.stderr
    assert ran.stdout == forked(script(tmp_path)).stdout


SWITCHED_TWICE = """
from transformers import LlamaConfig, LlamaForCausalLM
import torch

config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=16)
model = LlamaForCausalLM(config)
model.gradient_checkpointing_enable({"use_reentrant": True})
model.gradient_checkpointing_enable({"use_reentrant": False})
ids = torch.arange(8)[None]
model.train()(input_ids=ids, labels=ids).loss.backward()
"""


def test_lines_that_switch_checkpointing_on_with_other_options_are_named(tmp_path: Path) -> None:
    path = script(tmp_path, SWITCHED_TWICE)
    ran = run(path)  # a new process, which imports torch and transformers after the guard
    assert f"use_reentrant=False at {path}:8 overrides use_reentrant=True at {path}:7\n" in ran.stderr
    assert "2 of 2 blocks checkpointed, non-reentrant" in ran.stderr
