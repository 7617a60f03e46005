"""Judge a parameter of a forward by its name and annotation: gradient, past state, option or table."""

from __future__ import annotations

import re

from ckpt_surgery.model_patches.vocabulary import (
    GRADIENT,
    GRADIENT_ENDINGS,
    NO_TENSOR_ENDINGS,
    PAST_STATE,
    STATE_ENDINGS,
    STATE_SOMEWHERE,
    SWITCH_BEGINNINGS,
    TABLES,
)

_WORD = re.compile(r"[A-Za-z_]\w*")
_CONTAINER = re.compile(r"\b(?:[Ll]ist|[Tt]uple|[Dd]ict|Sequence|Iterable|Mapping)\b")
_PLAIN_TYPES = frozenset({"bool", "int", "float", "str"})
_TYPE_FORMS = frozenset({"Optional", "Union", "None", "typing", "list", "List", "tuple", "Tuple", "Sequence"})


def is_past_state(name: str) -> bool:
    """Tell whether a parameter of this name is a cache or recurrent state in every model that has one."""
    return name in PAST_STATE


def is_gradient(name: str, annotation: str = "") -> bool:
    """Tell whether a parameter of this name carries gradient.

    `position_embeddings` does not: it is a pair of rotary tables in most models, and learned only in the families
    whose facts say so. An annotation (source text) without a tensor type decides against any name.
    """
    if is_switch(name, annotation):
        return False
    return name in GRADIENT or name.endswith(GRADIENT_ENDINGS)


def is_switch(name: str, annotation: str = "") -> bool:
    """Tell whether a parameter surely carries no gradient: an option, mask, indices or size, or a plain type."""
    types = set(_WORD.findall(annotation)) - _TYPE_FORMS
    if "LongTensor" in annotation or (types and types <= _PLAIN_TYPES):
        return True
    return name.startswith(SWITCH_BEGINNINGS) or name.endswith(NO_TENSOR_ENDINGS)


def may_carry_gradient(name: str, annotation: str = "") -> bool:
    """Tell whether a parameter may carry gradient, as far as its name shows: not an option, mask, size or table."""
    return not is_switch(name, annotation) and not is_table(name)


def is_table(name: str) -> bool:
    """Tell whether a parameter of this name holds positions, a table of them or lengths in most models."""
    return any(word in name for word in TABLES)


def may_be_state(name: str) -> bool:
    """Tell whether a parameter of this name is recurrent state in some models.

    That it is given a gradient tensor proves nothing.
    """
    return name in STATE_SOMEWHERE or name.endswith(STATE_ENDINGS)


def is_container(annotation: str) -> bool:
    """Tell whether an annotation (source text) is that of a list, tuple or dict."""
    return _CONTAINER.search(annotation) is not None
