"""ALIGN and its vision part, EfficientNet: widths that follow from the stages (transformers 4.52 to 5.24.0)."""

_EFFICIENT = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
TINY = {
    "align": {"projection_dim": 320},  # what the vision part's last stage gives
    ("align_vision_model", "efficientnet"): _EFFICIENT,
}
KEPT = {("align_vision_model", "efficientnet"): ("hidden_dim", "in_channels", "out_channels")}
