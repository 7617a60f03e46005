"""Idefics3 and its heirs: image and patch sizes of the default parts do not fit (4.52 to 5.24.0)."""

FITTED = {
    "idefics3_vision": {"image_size": 364, "patch_size": 14},
    "modernvbert": {"vision_config": {"image_size": 512}},
    "smolvlm_vision": {"image_size": 364, "patch_size": 14},
}
