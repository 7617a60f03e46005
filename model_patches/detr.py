"""The DETR family: learned object queries and position embeddings.

`position_embeddings` means rotary tables in most of transformers. Here it is what a block adds to its
queries or keys: learned object queries, a sine embedding with a learned level embedding on top, or the
output of a projection of reference points; all carry gradient (transformers 4.52 to 5.23). Reference points
carry gradient where they are learned (LW-DETR, RF-DETR); those of the deformable encoders come from the grid.
"""

FAMILIES = (
    "conditional_detr",
    "d_fine",
    "dab_detr",
    "deformable_detr",
    "deimv2",
    "deta",
    "detr",
    "grounding_dino",
    "lw_detr",
    "mask2former",
    "maskformer",
    "mm_grounding_dino",
    "oneformer",
    "pp_doclayout_v2",
    "pp_doclayout_v3",
    "rf_detr",
    "rt_detr",
    "rt_detr_v2",
    "table_transformer",
)
GRADIENT = {"position_embeddings", "LwDetrDecoderLayer.reference_points", "RfDetrDecoderLayer.reference_points"}
_PHRASES = {"text_config": {"vocab_size": 1100}, "max_text_len": 8}
TINY = {
    ("grounding-dino", "mm-grounding-dino"): _PHRASES,
    "lw_detr": {"projector_scale_factors": [1.0]},
    "lw_detr_vit": {"num_windows": 4, "num_windows_side": 2, "image_size": 64, "pretrain_image_size": 64},
    "pp_doclayout_v2": {"class_thresholds": [0.0] * 100, "class_order": [i % 20 for i in range(100)]},
}
FITTED = {
    "lw_detr": {"projector_scale_factors": [1.0], "projector_in_channels": [256], "num_feature_levels": 1},
    "rf_detr_dinov2": {"image_size": 560},
}
INPUTS = {
    # two phrases with the separator ids of BERT's vocabulary, which these models hard-code
    ("grounding-dino", "mm-grounding-dino"): {
        "input_ids": "rows([101, 5, 6, 1012, 7, 8, 1012, 102])",
        "attention_mask": "ones(batch, 8)",
    },
    "oneformer": {"task_inputs": "tokens(batch, task_seq_len)"},
    "PPDocLayoutV2ReadingOrder": {
        "boxes": "boxes(batch, 4)",
        "labels": "integers(batch, 4, below=4)",
        "mask": "trues(batch, 4)",
    },
}
