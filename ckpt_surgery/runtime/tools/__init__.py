"""Helpers for the other folders: tensors, containers, random generators, module classes, handling of errors."""
