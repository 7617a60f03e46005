"""The version of this package; pyproject.toml says the same, which a test holds it to."""

__version__ = "0.1.0"
