"""Moshi: its depth decoder gets the mask of the text, which has another number of rows, and works only with a cache.

Without a cache the forward raises RuntimeError (measured on 5.23.0, with transformers' own checkpointing).
"""

NEEDS_CACHE = {"MoshiDepthDecoder"}
_CODES = "integers(batch, num_codebooks, length, below=audio_vocab_size)"
INPUTS = {  # both speakers of a dialogue beside the text
    "MoshiForConditionalGeneration": {
        "user_audio_codes": _CODES,
        "moshi_audio_codes": _CODES,
        "audio_labels": _CODES,
        "text_labels": "tokens(batch, length)",
    }
}
