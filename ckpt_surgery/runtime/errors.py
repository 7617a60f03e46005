"""What runtime surgery raises and warns with."""

from __future__ import annotations


class SurgeryError(Exception):
    """A surgery that cannot be done, or a call that cannot be checkpointed right; the text says what to do."""


class SurgeryWarning(UserWarning):
    """A surgery goes on, but otherwise than was asked for."""
