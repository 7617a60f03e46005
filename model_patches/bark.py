"""Bark: the fine model is told which codebook it predicts (transformers 4.52 to 5.24.0)."""

LEFT_OUT = {"BarkModel": "a model without a forward, for generation alone: BarkSemanticModel and the others train"}
INPUTS = {
    "BarkFineModel": {
        "input_ids": "integers(batch, length, n_codes_total, below=input_vocab_size)",
        "codebook_idx": 2,  # the first that is not given
    }
}
