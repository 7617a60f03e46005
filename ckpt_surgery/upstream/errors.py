"""What stops the preparation of a pull request."""

from __future__ import annotations


class UpstreamError(Exception):
    """Nothing was prepared: one sentence that says what is wrong, where, why and what to do."""
