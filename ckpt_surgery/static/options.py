"""The values that `check` and `apply` take, from Python, the command line and the configuration alike.

Imports no rule, so that reading a configuration loads none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeGuard

from ckpt_surgery.errors import OptionError

COUNT = "a whole number from 1 up"
"""What `is_count` takes, in words."""


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether a value can be a number of worker processes."""
    return type(value) is int and value >= 1


def are_names(value: object) -> TypeGuard[Collection[str]]:
    """Tell whether a value is several codes or patterns. One string is not: it would be read letter by letter."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        return False
    return all(isinstance(name, str) and name for name in value)


def check_options(
    codes: Sequence[str],
    *,
    exclude: object = (),
    per_file_ignores: object = None,
    families: object = (),
    jobs: object = None,
) -> None:
    """Check the values of options before the work begins. `codes` are those of all rules.

    Raises:
        OptionError: the sentence names the option, its value and what to give instead.
    """
    if jobs is not None and not is_count(jobs):
        raise OptionError(f"jobs is {jobs!r}: give {COUNT}, or None for one for each core")
    for option, value in (("exclude", exclude), ("families", families)):
        if not are_names(value):
            raise OptionError(f"{option} is {value!r}: give a list of strings")
    ignores = {} if per_file_ignores is None else per_file_ignores
    if not isinstance(ignores, Mapping):
        raise OptionError(f"per_file_ignores is {ignores!r}: give a dictionary of glob pattern to list of codes")
    for pattern, given in ignores.items():
        if not isinstance(pattern, str) or not are_names(given):
            raise OptionError(f"per_file_ignores has {pattern!r}: {given!r}: give a glob pattern and a list of codes")
        check_codes(given, codes, f"per_file_ignores[{pattern!r}]: ")


def check_codes(given: Collection[str], codes: Sequence[str], where: str = "") -> None:
    """Check that every code is that of a rule; `where` begins the sentence. Raises OptionError."""
    if unknown := ", ".join(map(repr, sorted({*given} - {*codes}, key=str))):
        raise OptionError(f"{where}no rule has the code {unknown}: the codes are {', '.join(codes)}")
