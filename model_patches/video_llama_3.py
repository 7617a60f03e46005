"""VideoLLaMA 3: the merge factor of each image (transformers 5.23.0 to 5.24.0)."""

INPUTS = {
    ("video_llama_3", "video_llama_3_vision"): {
        "merge_sizes": "full(batch, value=2)",
        "image_merge_sizes": "full(batch, value=2)",
    }
}
