"""SeamlessM4T: text or speech, units, and a speaker (transformers 4.52 to 5.24.0)."""

_EMBEDDINGS = {"input_ids": None, "inputs_embeds": "floats(batch, length, hidden_size)"}
_SPEECH = {"input_ids": None, "input_features": "floats(batch, 64, mels)", "attention_mask": "ones(batch, 64)"}
INPUTS = {
    "SeamlessM4TCodeHifiGan": {
        "input_ids": "tokens(batch, length)",
        "spkr_id": "integers(batch, 1, below=2)",
        "lang_id": "integers(batch, 1, below=2)",
    },
    ("SeamlessM4TModel", "SeamlessM4Tv2Model"): _SPEECH,
    ("SeamlessM4TTextToUnitForConditionalGeneration", "SeamlessM4TTextToUnitModel"): _EMBEDDINGS,
}
