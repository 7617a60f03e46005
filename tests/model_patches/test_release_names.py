"""The names that libraries use are where we say in the installed release's source, and only there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

from ckpt_surgery.codemods.tree.layer_releases import LayerReleases
from ckpt_surgery.codemods.tree.names import TreeNames
from ckpt_surgery.model_patches import release_names
from ckpt_surgery.model_patches.release_names import RELEASES, known_name

pytestmark = pytest.mark.both

FILES = ("modeling_utils.py", "modeling_layers.py", "cache_utils.py", "utils/generic.py")
MODELS = ("models/llama/modeling_llama.py", "models/mamba/modeling_mamba.py")
OF_OTHERS = {
    release_names.DIFFUSERS_CLAIM,
    release_names.DIFFUSERS_FUNCTION,
    release_names.DIFFUSERS_SWITCH,
    release_names.DIFFUSERS_SWITCH_OFF,
    release_names.TIMM_SWITCH,
}
NO_NAMES = ("RELEASES", "CLEARS_SINCE", "LAYERS_SINCE", "WITHOUT_LAYERS")
ROLES = [value for constant, value in vars(release_names).items() if constant.isupper() and constant not in NO_NAMES]
NAMES = {name for role in ROLES for name in ((role,) if isinstance(role, str) else role)} - OF_OTHERS


def source(files: tuple[str, ...]) -> str:
    package = Path((find_spec("transformers") or pytest.skip("transformers is not installed")).origin or "").parent
    return "".join((package / file).read_text(encoding="utf-8") for file in files if (package / file).exists())


def is_there(name: str) -> bool:
    if name in release_names.CACHE_ARGUMENT:
        return f"        {name}: " in source(MODELS)
    return name.removesuffix(".<locals>") in source((*FILES, *MODELS))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_is_in_the_releases_that_are_said_to_have_it(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    installed = Version(transformers.__version__)
    first, last = RELEASES.get(name, ("", ""))
    expected = (not first or installed >= Version(first)) and (not last or installed <= Version(last))
    assert is_there(name) is expected


def test_the_layer_class_clears_what_it_is_said_to_clear() -> None:
    # Its source compares each name with the keywords that it was given.
    installed = pytest.importorskip("transformers").__version__
    layers = LayerReleases(TreeNames({}, lambda path: None), lambda path: {f"transformers=={installed}": "setup.py"})
    assert set(layers.cleared("modeling_foo.py")) == set(re.findall(r'"(\w+)" in kwargs', source(FILES[1:2])))


def test_only_names_get_their_releases() -> None:
    assert RELEASES.keys() <= NAMES


def test_the_latest_name_is_taken() -> None:
    assert known_name(("new", "old"), {"old", "new", "other"}) == "new"
    assert known_name(("new", "old"), ["old"]) == "old"
    assert known_name(("new", "old"), ()) is None
