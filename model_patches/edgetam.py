"""EdgeTAM: its backbone is a RepViT of timm (transformers 4.57.6 to 5.24.0)."""

LEFT_OUT = {
    "EdgeTamVideoModel": ("a forward in inference mode, which records no gradient: the model for images trains")
}
FITTED = {"edgetam_vision_model": {"backbone_config": {"architecture": "repvit_m1"}}}
