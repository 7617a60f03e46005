"""Qwen2.5-Omni: a thinker, a talker, and a model that turns codes into waves (transformers 4.52 to 5.24.0)."""

TINY = {
    "qwen2_5_omni_dit": {"enc_channels": [64, 64, 64, 64, 192]},  # the last holds the three before it
    "qwen2_5_omni_thinker": {"+vision_start_token_id": 121, "+vision_end_token_id": 122},
}
PARTS = {"qwen2_5_omni": {"Qwen2_5OmniVisionEncoder": "Qwen2_5OmniVisionEncoderConfig"}}
LEFT_OUT = {
    "Qwen2_5OmniPreTrainedModelForConditionalGeneration": "a base of other classes, without a forward",
    "Qwen2_5OmniForConditionalGeneration": (
        "a model without a forward, for generation alone: Qwen2_5OmniThinkerForConditionalGeneration trains"
    ),
}
INPUTS = {
    "Qwen2_5OmniTalkerForConditionalGeneration": {
        "input_text_ids": "tokens(batch, length)",
        "thinker_reply_part": "floats(batch, length, embedding_size)",
    },
    "Qwen2_5OmniToken2WavBigVGANModel": {"mel_spectrogram": "floats(batch, mel_dim, 8)"},
    "Qwen2_5OmniToken2WavDiTModel": {
        "hidden_states": "floats(batch, 12 * repeats, mel_dim)",
        "condition_vector": "floats(batch, 12 * repeats, mel_dim)",
        "speaker_embedding": "floats(batch, 12 * repeats, enc_emb_dim)",
        "quantized_code": "integers(batch, 12, below=num_embeds)",
        "time_step": "shares(batch)",
    },
}
