"""BEiT: segmentation reads four stages of the backbone (transformers 4.52 to 5.24.0)."""

OPTIONS = {
    "BeitForSemanticSegmentation": {
        "num_hidden_layers": 4,
        "stage_names": ["stem", "stage1", "stage2", "stage3", "stage4"],
        "out_indices": [1, 2, 3, 4],
    }
}
