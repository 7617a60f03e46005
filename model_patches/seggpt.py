"""SegGPT: an image and a prompt one above the other (transformers 4.52 to 5.24.0)."""

TINY = {
    "seggpt": {
        "image_size": [64, 32],
        "num_hidden_layers": 5,
        "intermediate_hidden_state_indices": [1, 2, 3, 4],
        "merge_index": 0,
    }
}
_IMAGE = "floats(batch, channels, height // 2, width)"  # the configuration counts both images
INPUTS = {"seggpt": {"pixel_values": _IMAGE, "prompt_pixel_values": _IMAGE, "prompt_masks": _IMAGE, "labels": _IMAGE}}
