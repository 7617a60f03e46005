"""Inputs of audio: waveforms, spectrograms, codes of codecs, latents; one function for each form.

Each changes the arguments of a forward in place, as those in `family_inputs` do.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt_surgery.tiny.arguments import ForwardArguments

AUDIO_INPUTS: dict[str, Callable[[ForwardArguments], None]] = {}
"""The change to the inputs by class or model type."""
