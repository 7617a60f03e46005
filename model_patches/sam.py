"""SAM: sizes of the prompt encoder that follow from the image (transformers 4.52 to 5.24.0)."""

TINY = {
    "sam2_hiera_det_model": {  # stages differ in width: the pooled residual is projected only then
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 2, 2, 4],
        "blocks_per_stage": [2, 2, 2, 2],
        "global_attention_blocks": [3, 5],
        "image_size": [64, 64],
        "hidden_size": 16,
    },
    "sam2_prompt_encoder": {"image_size": 64, "patch_size": 16},
    "sam2_vision_model": {
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        "backbone_channel_list": [128, 64, 32, 16],
    },
}
PARTS = {"sam": {"SamVisionEncoder": "SamVisionConfig"}, "sam_hq": {"SamHQVisionEncoder": "SamHQVisionConfig"}}
LEFT_OUT = {"Sam2VideoModel": "a forward in inference mode, which records no gradient: the model for images trains"}
