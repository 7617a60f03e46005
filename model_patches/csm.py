"""CSM: the backbone reads codes of every codebook; audio is left out (transformers 4.52 to 5.24.0)."""

PARTS = {"csm": {"CsmDepthDecoderForCausalLM": "CsmDepthDecoderConfig"}}
INPUTS = {
    "csm": {"input_values": None},
    "CsmBackboneModel": {"input_ids": "integers(batch, length, num_codebooks, below=codebook_size)"},
}
