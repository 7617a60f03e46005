"""Qwen3-Omni: a thinker, a talker with a code predictor, and a code decoder (transformers 4.57.6 to 5.24.0)."""

_MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
TINY = {
    "qwen3_omni_moe_talker_text": {**_MROPE, "+shared_expert_intermediate_size": 64},
    "qwen3_omni_moe_text": _MROPE,
    "qwen3_omni_moe_thinker": {"+vision_start_token_id": 121, "+vision_end_token_id": 122},
}
KEPT = {"qwen3_omni_moe_audio_encoder": ("n_window", "n_window_infer")}
OPTIONS = {"Qwen3OmniMoeTalkerForConditionalGeneration": {"spatial_merge_size": 2}}
PARTS = {
    "qwen3_omni_moe": {
        "Qwen3OmniMoeCode2Wav": "Qwen3OmniMoeCode2WavConfig",
        "Qwen3OmniMoeCode2WavTransformerModel": "Qwen3OmniMoeCode2WavConfig",
        "Qwen3OmniMoeVisionEncoder": "Qwen3OmniMoeVisionEncoderConfig",
    }
}
LEFT_OUT = {
    "Qwen3OmniMoePreTrainedModelForConditionalGeneration": "a base of other classes, without a forward",
    "Qwen3OmniMoeForConditionalGeneration": (
        "a model without a forward, for generation alone: Qwen3OmniMoeThinkerForConditionalGeneration trains"
    ),
}
FITTED = {"qwen3_omni_moe_text": {"num_attention_heads": 32}}
_EMBEDDINGS = {"input_ids": None, "inputs_embeds": "floats(batch, length, hidden_size)"}
INPUTS = {
    "Qwen3OmniMoeCode2Wav": {"codes": "integers(batch, num_quantizers, 8, below=codebook_size)"},
    (
        "Qwen3OmniMoeCode2WavTransformerModel",
        "Qwen3OmniMoeTalkerCodePredictorModel",
        "Qwen3OmniMoeTalkerForConditionalGeneration",
        "Qwen3OmniMoeTalkerModel",
    ): _EMBEDDINGS,
    "Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration": {**_EMBEDDINGS, "labels": "tokens(batch, length)"},
}
