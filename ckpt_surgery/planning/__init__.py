"""Predict a training step before it runs: its memory and time, on shapes and without weights."""
