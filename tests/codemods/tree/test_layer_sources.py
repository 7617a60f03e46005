"""Which requirements admit releases without the layer class."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.tree.layer_sources import admits_releases_without_layers


@pytest.mark.parametrize(
    ("specifier", "admits"),
    [
        ("", False),
        ("!=4.53.0", False),
        ("<6", False),
        (">=4.52", False),
        (">=4.52.0.dev0", False),
        (">=5", False),
        ("~=4.57.6", False),
        ("==4.52.*", False),
        (">=4.40,>=4.52", False),
        (">=4.51.3", True),
        (">4.51", True),
        ("==4.48.0", True),
        ("==4.51.*", True),
        ("<4.52", True),
        ("<4.52.0", True),
        ("<=4.51.3", True),
        ("<4.52.4", False),
        (">=4.41,<5", True),
        ("===what", False),
        (" is what it needs", False),
    ],
)
def test_the_oldest_release_that_is_asked_for_decides(specifier: str, admits: bool) -> None:
    assert admits_releases_without_layers(f"transformers{specifier}") is admits
