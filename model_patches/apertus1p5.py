"""Apertus 1.5: images and sounds become discrete tokens, which carry no gradient (transformers 5.24.0)."""

TINY = {
    "apertus1p5": {"image_token_id": 120, "audio_token_id": 121, "image_token_offset": 80, "audio_token_offset": 88},
    "apertus1p5_vision_tokenizer": {
        "base_channels": 32,
        "channel_multiplier": (1, 1),
        "codebook_size": 8,
        "embed_dim": 32,
        "latent_channels": 32,
        "num_res_blocks": 1,
        "resolution": 32,
    },
    "wavtokenizer_encoder": {"codebook_size": 8},
}
LEFT_OUT = {
    ("Apertus1p5VisionTokenizerModel", "WavTokenizerEncoderModel"): (
        "a codec without a forward, which other classes call by its parts"
    )
}
INPUTS = {"apertus1p5": {"pixel_values": None, "image_sizes": None, "input_values": None, "padding_mask": None}}
