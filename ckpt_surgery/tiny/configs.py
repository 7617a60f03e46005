"""The configurations inside a configuration. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PretrainedConfig


def nested_configs(config: PretrainedConfig) -> Iterator[tuple[str, PretrainedConfig]]:
    """The configurations directly inside `config`, each with the name of its attribute."""
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield name, value


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration of the text; `config` itself where there is none apart from it, or several."""
    try:
        text: PretrainedConfig = config.get_text_config()
    except (AttributeError, ValueError):  # no text, or several
        return config
    return text


def all_configs(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """`config` and, recursively, every configuration inside it."""
    yield config
    for _, nested in nested_configs(config):
        yield from all_configs(nested)
