"""BLIP-2 and InstructBLIP: the Q-Former takes queries and a copy of the text (transformers 4.52 to 5.24.0)."""

_TOKEN = 120  # unset by default; inside the tiny vocabulary of 128
TINY = {("blip-2", "instructblip"): {"image_token_index": _TOKEN}, "instructblipvideo": {"video_token_index": _TOKEN}}
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
