"""SAM 3: the decoder's cross attention mask is learned.

`vision_cross_attn_mask` comes out of two small networks over box positions (`box_rpb_embed_x`, `_y`) and
carries gradient, unlike every other mask (transformers 5.x; only the lite text model claims checkpointing).
"""

FAMILIES = ("sam3", "sam3_lite_text")
GRADIENT = {"vision_cross_attn_mask"}
TINY = {"sam3_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}}
LEFT_OUT = {
    ("Sam3TrackerVideoModel", "Sam3VideoModel"): (
        "a forward in inference mode, which records no gradient: the model for images trains"
    )
}
