"""The wheel and the sdist: they install one top-level name, and work beside the user's own packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "ckpt_surgery"
LINKED = ("codemods", "model_patches")
USER_PACKAGES = (*LINKED, "benchmarks", "tests")
RAISES = "raise RuntimeError('a package of the user')\n"
OTHER_NAMES = "OWNER = 'user'\n"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")

MODEL = """
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import PreTrainedModel


class MyBlock(GradientCheckpointingLayer):
    def forward(self, hidden_states):
        return hidden_states


class MyModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([MyBlock() for _ in range(2)])

    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states=hidden_states)
        return hidden_states
"""
SCRIPT = """
import json
import ckpt_surgery
from ckpt_surgery import apply, check

codes = [finding.code for finding in check(["modeling_mine.py"], cache=False).findings]
changed = [change.path for change in apply(["modeling_mine.py"], write=False).changes]
print(json.dumps({"codes": codes, "changed": changed, "home": ckpt_surgery.__file__}))
"""
TESTS = """
from ckpt_surgery import check


def test_the_plugin_is_loaded(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("ckpt_surgery")
    assert pytestconfig.getoption("--ckpt-models") is None


def test_check_is_at_hand():
    assert [finding.code for finding in check(["modeling_mine.py"]).findings] == ["CKPT003"]
"""


@dataclass(frozen=True)
class Installation:
    """An interpreter with the package installed, and where the package must come from."""

    python: str
    environment: dict[str, str]
    home: Path

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments], cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )


def tracked_files(root: Path) -> list[str]:
    """List the files that a commit of this working tree would hold; a link to a folder is one of them."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs a git checkout: {done.stderr.strip()}", allow_module_level=True)
    names = sorted(set(done.stdout.split("\0")) - {""})
    return [name for name in names if os.path.lexists(root / name)]


def package_files(names: Collection[str]) -> set[str]:
    """Place each file of the package once: those of the linked folders belong inside it."""
    inside = {name for name in names if name.startswith(f"{PACKAGE}/")} - {f"{PACKAGE}/{name}" for name in LINKED}
    return inside | {f"{PACKAGE}/{name}" for name in names if name.startswith(tuple(f"{top}/" for top in LINKED))}


def contents_faults(contents: Sequence[str], expected: Collection[str]) -> list[str]:
    """Describe what an archive lacks of `expected`, has beside it, or has twice."""
    faults = [f"missing: {name}" for name in sorted({*expected} - {*contents})]
    faults += [f"not expected: {name}" for name in sorted({*contents} - {*expected})]
    return faults + [f"twice: {name}" for name in sorted({*contents}) if contents.count(name) > 1]


def wheel_contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == len({*archive.namelist()})
        return {name: archive.read(name) for name in archive.namelist()}


def build(source: Path, kind: str, folder: Path) -> Path:
    """Have the build backend make a `wheel` or an `sdist`, as `pip wheel --no-build-isolation` does."""
    script = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def files() -> list[str]:
    return tracked_files(ROOT)


@pytest.fixture(scope="module")
def tree(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("tree")
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(tree: Path, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tree, "wheel", tmp_path_factory.mktemp("wheel"))


def from_wheel(wheel: Path, folder: Path) -> Installation:
    """Unpack the wheel to a folder that is found before this interpreter's packages."""
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", folder, wheel], check=True)
    return Installation(sys.executable, {**os.environ, "PYTHONPATH": str(folder)}, folder)


def editable(tree: Path, folder: Path) -> Installation:
    """Install editably in a new virtual environment that borrows this interpreter's other packages."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    paths = {"base": str(folder), "platbase": str(folder)}
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(sysconfig.get_path("purelib", "venv", vars=paths), "borrowed.pth").write_text("\n".join(sorted(borrowed)))
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--editable")
    subprocess.run([*PIP, "--python", python, "install", *options, tree], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return Installation(python, environment, tree)


@pytest.fixture(scope="module")
def installations(tree: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Installation]:
    return {
        "wheel": from_wheel(wheel, tmp_path_factory.mktemp("installed")),
        "editable": editable(tree, tmp_path_factory.mktemp("venv")),
    }


@dataclass(frozen=True)
class Place:
    """A user's working folder, and how the package was installed."""

    folder: Path
    installation: Installation

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.installation.run(self.folder, *arguments)


@pytest.fixture(
    params=[("wheel", RAISES), ("wheel", OTHER_NAMES), ("editable", RAISES)],
    ids=["wheel, packages that raise", "wheel, packages of other names", "editable install"],
)
def place(request: pytest.FixtureRequest, installations: dict[str, Installation], tmp_path: Path) -> Place:
    """Make a working folder with a model, and packages named like folders of ours."""
    kind, package = request.param
    for name in USER_PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(package)
    (tmp_path / "modeling_mine.py").write_text(MODEL)
    return Place(tmp_path, installations[kind])


def test_the_wheel_installs_one_top_level_name(wheel: Path, files: list[str]) -> None:
    contents = wheel_contents(wheel)
    package = [name for name in contents if ".dist-info/" not in name]
    assert contents_faults(package, package_files(files)) == []
    (top_level,) = [text for name, text in contents.items() if name.endswith(".dist-info/top_level.txt")]
    assert top_level.decode().split() == [PACKAGE]


def test_the_sdist_holds_each_file_of_the_package_once(sdist: Path, files: list[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()]
        assert not [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
    beside = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    names = [name for name in names if not name.startswith(f"{PACKAGE}.egg-info/")]
    assert contents_faults(names, package_files(files) | beside) == []


def test_a_wheel_made_from_the_sdist_is_the_one_made_from_the_tree(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    (tmp_path / "wheel").mkdir()
    assert wheel_contents(build(source, "wheel", tmp_path / "wheel")) == wheel_contents(wheel)


@pytest.mark.parametrize(
    ("contents", "fault"),
    [
        (["ckpt_surgery/a.py"], "missing: ckpt_surgery/codemods/b.py"),
        (["ckpt_surgery/a.py", "ckpt_surgery/codemods/b.py", "codemods/b.py"], "not expected: codemods/b.py"),
        (["ckpt_surgery/a.py", "ckpt_surgery/codemods/b.py", "ckpt_surgery/a.py"], "twice: ckpt_surgery/a.py"),
    ],
)
def test_a_file_that_is_missing_elsewhere_or_twice_is_seen(contents: list[str], fault: str) -> None:
    expected = package_files(["ckpt_surgery/a.py", "ckpt_surgery/codemods", "codemods/b.py", "tests/c.py"])
    assert contents_faults(contents, expected) == [fault]


def test_check_runs_as_a_module_beside_packages_of_the_user(place: Place) -> None:
    done = place.python("-m", "ckpt_surgery", "check", "modeling_mine.py", "--no-cache")
    assert (done.returncode, done.stderr) == (1, "")
    assert "modeling_mine.py\n  21:35 CKPT003 [safe] MyModel" in done.stdout


def test_a_script_imports_it_beside_packages_of_the_user(place: Place) -> None:
    (place.folder / "script.py").write_text(SCRIPT)
    done = place.python("script.py")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (answer["codes"], answer["changed"]) == (["CKPT003"], ["modeling_mine.py"])
    assert Path(answer["home"]) == place.installation.home / PACKAGE / "__init__.py"


def test_pytest_runs_with_the_plugin_beside_packages_of_the_user(place: Place) -> None:
    (place.folder / "test_mine.py").write_text(TESTS)
    without = ("cacheprovider", "xdist", "hypothesispytest")  # to start sooner
    options = [word for name in without for word in ("-p", f"no:{name}")]
    done = place.python("-m", "pytest", "-q", *options, "test_mine.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def link_faults(root: Path) -> list[str]:
    """Find linked folders that are not links to their top-level folder, and test files in them, which would run.

    Without links, mypy and ruff would see two copies of each file.
    """
    faults = []
    for name in LINKED:
        link = root / PACKAGE / name
        if not link.is_symlink() or os.readlink(link) != f"../{name}":
            faults.append(f"no link: {PACKAGE}/{name}")
        tests = sorted([*(root / name).rglob("test_*.py"), *(root / name).rglob("*_test.py")])
        faults += [f"test file: {path.relative_to(root)}" for path in tests]
    return faults


@pytest.fixture
def linked_tree(tmp_path: Path) -> Path:
    """Write a package with links as in this project, and a file in each linked folder."""
    (tmp_path / PACKAGE).mkdir()
    for name in LINKED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "finding.py").write_text("")
        (tmp_path / PACKAGE / name).symlink_to(f"../{name}", target_is_directory=True)
    return tmp_path


def test_the_linked_folders_are_links_and_hold_no_tests(linked_tree: Path) -> None:
    assert link_faults(ROOT) == []
    assert link_faults(linked_tree) == []


def test_a_copy_in_place_of_a_link_and_a_test_in_a_linked_folder_are_seen(linked_tree: Path) -> None:
    (linked_tree / PACKAGE / "codemods").unlink()
    shutil.copytree(linked_tree / "codemods", linked_tree / PACKAGE / "codemods")
    (linked_tree / "model_patches" / "test_it.py").write_text("")
    assert link_faults(linked_tree) == [f"no link: {PACKAGE}/codemods", "test file: model_patches/test_it.py"]
