"""Phi-4 multimodal: its audio part takes features as `hidden_states` (transformers 4.52 to 5.24.0)."""

INPUTS = {"Phi4MultimodalAudioModel": {"hidden_states": "floats(batch, 64, input_size)", "mask": "ones(batch, 64)"}}
