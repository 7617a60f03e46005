"""TVP: one clip and one text, as the column embeddings have no place for more (transformers 4.52 to 5.24.0)."""

TINY = {"tvp": {"max_img_size": 64, "visual_prompt_size": 8}}
OPTIONS = {("TvpForVideoGrounding", "TvpModel"): {"type_vocab_size": 2}}
INPUTS = {
    "tvp": {
        "input_ids": "first(1)",
        "attention_mask": "first(1)",
        "pixel_values": "floats(1, num_frames, channels, height, width)",
    }
}
