"""BLIP-2 and its heirs: the Q-Former has queries and a text of its own (4.52 to 5.24.0)."""

TINY = {("blip-2", "instructblip"): {"image_token_index": 120}, "instructblipvideo": {"video_token_index": 120}}
OPTIONS = {("Blip2ForImageTextRetrieval", "Blip2TextModelWithProjection"): {"use_qformer_text_input": True}}
PARTS = {
    "blip_2": {"Blip2QFormerModel": "Blip2QFormerConfig"},
    "instructblip": {"InstructBlipQFormerModel": "InstructBlipQFormerConfig"},
    "instructblipvideo": {"InstructBlipVideoQFormerModel": "InstructBlipVideoQFormerConfig"},
}
_QUESTION = {"qformer_input_ids": "tokens(batch, 6)"}
INPUTS = {
    "blip_2_qformer": {
        "query_embeds": "floats(batch, 4, hidden_size)",
        "encoder_hidden_states": "floats(batch, 5, encoder_hidden_size)",
    },
    "instructblip": _QUESTION,
    "instructblipvideo": {**_QUESTION, "pixel_values": "floats(batch, 2, channels, height, width)"},
}
