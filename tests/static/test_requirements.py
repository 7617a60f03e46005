"""The transformers releases that a package asks for, in every place that may say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.static.check import check
from ckpt_surgery.static.requirements import required_transformers
from tests.codemods.snippets import PLAIN


def read(path: str) -> str | None:
    file = Path(path)
    return file.read_text(encoding="utf-8") if file.is_file() else None


def required(root: Path, files: dict[str, str], at: str = "foo/models/modeling_foo.py") -> tuple[str, ...]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return tuple(required_transformers(str(root / at), read))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["torch", "transformers>=4.40"]\n'),
        ("pyproject.toml", '[project.optional-dependencies]\nhub = ["transformers[torch] >= 4.40 ; extra"]\n'),
        ("pyproject.toml", '[dependency-groups]\ntest = ["transformers>=4.40"]\n'),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "^4.40"\n'),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = { version = "~4.40", extras = ["torch"] }\n'),
        ("setup.py", 'needed = ["torch"]\nsetup(extras_require={"hub": needed + ["transformers>=4.40"]})\n'),
        ("setup.cfg", "[options]\ninstall_requires =\n    torch\n    transformers>=4.40\n"),
        ("setup.cfg", "[options.extras_require]\nhub = transformers>=4.40\n"),
        ("requirements.txt", "torch\ntransformers >= 4.40  # the oldest that was tried\n"),
        ("requirements-test.txt", "transformers>=4.40; python_version > '3.9'\n"),
        ("requirements/transformers.txt", "transformers>=4.40\n"),
        ("requirements_lightning.in", "torch\ntransformers[torch]>=4.40\n"),
        ("dev-requirements.txt", "transformers>=4.40 \\\n    --hash=sha256:00\n"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = [{ version = ">=4.40", python = "3.11" }]\n'),
        ("pyproject.toml", '[tool.pdm.dev-dependencies]\ntest = ["transformers>=4.40"]\n'),
        ("pyproject.toml", '[project.optional-dependencies]\ntransformers = ["transformers>=4.40"]\n'),
        ("environment.yml", "dependencies:\n  - python=3.11\n  - pip:\n      - transformers>=4.40\n"),
        ("foo.yaml", "name: foo\ndependencies:\n  - python=3.8\n  - pip:\n    - transformers>=4.40\nprefix: /foo\n"),
        ("conda/env.yaml", "dependencies:\n  - transformers>=4.40\n"),
        ("conda-recipe/meta.yaml", "requirements:\n  run:\n    - transformers >=4.40\n"),
        ("Dockerfile", 'RUN apt-get update && \\\n    pip install -U "torch>2" \\\n    "transformers>=4.40"\n'),
        ("foo-1.0.dist-info/METADATA", "Name: foo\nRequires-Dist: transformers (>=4.40) ; extra == 'hub'\n"),
    ],
)
def test_every_form_is_read(tmp_path: Path, name: str, text: str) -> None:
    assert required(tmp_path, {name: text}) == ("transformers>=4.40",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["sentence-transformers>=2", "transformers-neuronx>=0.1"]\n'),
        ("pyproject.toml", "[project\n"),
        ("setup.py", "def setup(:\n"),
        ("setup.cfg", "transformers>=4.40\n"),
        ("setup.cfg", "[metadata]\nkeywords =\n    transformers>=4.40\n"),
        ("bar-1.0.dist-info/METADATA", "Requires-Dist: transformers>=4.40\n"),
        ("notes.txt", "transformers>=4.40\n"),
        ("requirements.txt", "transformers\ntransformers!=4.41\n# transformers>=4.40\n-e .  # transformers>=4.40\n"),
        ("requirements.txt", "git+https://github.com/huggingface/transformers@v4.40.0\n"),
        ("environment.yml", "name: transformers>=4.40\ndependencies:\n  - transformers\n"),
        ("config.yaml", "- transformers>=4.40\n"),
        ("config.yaml", "dependencies:\n  - torch\nmodels:\n  - transformers>=4.40\n"),
        ("docker.yaml", "dependencies:\n  - pip:\n    - transformers>=4.40\n"),
        (".gitlab-ci.yml", "dependencies:\n  - pip:\n    - transformers>=4.40\n"),
        ("other/foo.yaml", "dependencies:\n  - pip:\n    - transformers>=4.40\n"),
        (
            "Dockerfile",
            "# pip install transformers==4.40\nRUN echo transformers==4.40\nRUN pip install transformers==$V\n",
        ),
        ("data/transformers.txt", "transformers>=4.40\n"),
    ],
)
def test_what_says_nothing_of_the_package_is_passed_over(tmp_path: Path, name: str, text: str) -> None:
    assert required(tmp_path, {name: text}) == ()


def test_the_versions_of_poetry_and_conda_are_read(tmp_path: Path) -> None:
    pages = {
        f"{at}/pyproject.toml": f'[tool.poetry.dependencies]\ntransformers = "{version}"\n'
        for at, version in {"any": "*", "one": "4.40", "range": ">=4.40,!=4.41.*"}.items()
    }
    found = [required(tmp_path, pages, f"{at}/a.py") for at in ("any", "one", "range")]
    assert found == [(), ("transformers==4.40",), ("transformers>=4.40,!=4.41.*",)]
    text = "dependencies:\n  - transformers=4.40=py_0\n  - 'transformers=4.41.*'\n"
    assert required(tmp_path / "1", {"environment.yaml": text}) == ("transformers==4.40", "transformers==4.41.*")


def test_the_nearest_folder_that_names_a_release_counts(tmp_path: Path) -> None:
    files = {"requirements/base.txt": "transformers==4.48.2\n", "foo/requirements.txt": "transformers\n"}
    assert required(tmp_path, files) == ("transformers==4.48.2",)
    files = {"requirements.txt": "transformers>=4.40\n", "foo/requirements.txt": "transformers>=4.50\n"}
    files["foo/setup.py"] = '"transformers>=4.45"\n'
    assert required(tmp_path / "1", files) == ("transformers>=4.45", "transformers>=4.50")


def test_a_distribution_of_another_name_is_known_by_its_record(tmp_path: Path) -> None:
    files = {"bar-1.0.dist-info/METADATA": "Requires-Dist: transformers>=4.40\n"}
    files["bar-1.0.dist-info/RECORD"] = "bar-1.0.dist-info/METADATA,,\nfoo/__init__.py,,\n"
    assert required(tmp_path, files) == ("transformers>=4.40",)


def test_the_file_that_states_a_requirement_is_named(tmp_path: Path) -> None:
    texts = {"requirements/a.txt": "transformers>=4.40\n", "setup.py": '"transformers>=4.40", "transformers==4.48.0"'}
    required(tmp_path, texts | {"foo/modeling_foo.py": PLAIN.replace("...modeling_utils", "transformers")})
    said = required_transformers(str(tmp_path / "foo/modeling_foo.py"), read)
    assert said == {"transformers>=4.40": "setup.py", "transformers==4.48.0": "setup.py"}
    (finding,) = check([tmp_path / "foo"], jobs=1).findings
    assert "asks for transformers>=4.40 (setup.py)" in finding.message


def test_nothing_is_read_above_the_repository(tmp_path: Path) -> None:
    (tmp_path / "foo" / ".git").mkdir(parents=True)
    assert required(tmp_path, {"requirements.txt": "transformers>=4.40\n"}) == ()


SWITCH = """
model = AutoModelForCausalLM.from_pretrained("m")
model.gradient_checkpointing_enable()
model = DistributedDataParallel(model)
model(**batch).loss.backward()
"""


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("transformers==5.12.1", []),
        ("transformers", ["CKPT104"]),
        ("transformers>=4.50\ntransformers>=5", ["CKPT104"]),
    ],
)
def test_what_older_releases_do_is_no_news_where_none_is_asked_for(
    tmp_path: Path, text: str, codes: list[str]
) -> None:
    required(tmp_path, {"requirements.txt": text, "train.py": SWITCH})
    assert [finding.code for finding in check([tmp_path / "train.py"], jobs=1).findings] == codes


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "foo/setup.cfg", "requirements/a.txt"])
def test_a_cached_result_does_not_outlive_a_change(tmp_path: Path, name: str) -> None:
    texts = {
        "requirements.txt": "transformers>={}\n",
        "requirements/a.txt": "transformers>={}\n",
        "pyproject.toml": '[project]\ndependencies = ["transformers>={}"]\n',
        "foo/setup.cfg": "[options]\ninstall_requires = transformers>={}\n",
    }
    model = PLAIN.replace("...modeling_utils", "transformers")
    required(tmp_path, {"foo/modeling_foo.py": model})
    found = [check([tmp_path]).findings[0].applicability.value]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for release in ("4.40", "4.52"):
        (tmp_path / name).write_text(texts[name].format(release), encoding="utf-8")
        found.append(check([tmp_path]).findings[0].applicability.value)
    assert found == ["safe", "unsafe", "safe"]
