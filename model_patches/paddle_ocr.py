"""PaddleOCR's detectors and readers: kernels and stages that depend on each other (transformers 5.23.0 to 5.24.0)."""

_STRIPES = {  # kernels of a text detector: tall, wide and square ones, with stride and padding
    "kernel_list": [3, 2, 2],
    "scale_factor_list": [1, 2, 4, 8],
    "intraclass_block_config": {
        "reduce_channel": [1, 1, 0],
        "return_channel": [1, 1, 0],
        "vertical_long_to_small_conv_longratio": [[7, 1], [1, 1], [3, 0]],
        "vertical_long_to_small_conv_midratio": [[5, 1], [1, 1], [2, 0]],
        "vertical_long_to_small_conv_shortratio": [[3, 1], [1, 1], [1, 0]],
        "horizontal_small_to_long_conv_longratio": [[1, 7], [1, 1], [0, 3]],
        "horizontal_small_to_long_conv_midratio": [[1, 5], [1, 1], [0, 2]],
        "horizontal_small_to_long_conv_shortratio": [[1, 3], [1, 1], [0, 1]],
        "symmetric_conv_long_longratio": [7, 1, 3],
        "symmetric_conv_long_midratio": [5, 1, 2],
        "symmetric_conv_long_shortratio": [3, 1, 1],
    },
}
_SQUARE_STAGES = {  # each halves height and width alike
    "stem_channels": [3, 16, 32],
    "block_configs": [
        [[3, 32, 32, 1, True]],
        [[3, 32, 64, 2, False]],
        [[3, 64, 64, 2, False]],
        [[3, 64, 64, 2, True]],
    ],
    "depths": [1, 1, 1, 1],
    "stage_out_channels": [32, 64, 64, 64],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "out_indices": [1, 2, 3, 4],
}
TINY = {
    "pp_ocrv5_server_det": _STRIPES,
    "pp_ocrv6_medium_det": {**_STRIPES, "backbone_config": _SQUARE_STAGES},
    "pp_ocrv6_small_det": {"backbone_config": _SQUARE_STAGES, "layer_list_out_channels": [32, 64, 64, 64]},
    "uvdoc": {
        "backbone_config": {
            "out_features": ["stage1", "stage2", "stage3", "stage4", "stage5", "stage6"],
            "out_indices": [1, 2, 3, 4, 5, 6],
        }
    },
}
KEPT = {
    "pp_lcnet_v4": ("stem_channels",),
    "uvdoc": ("bridge_connector",),
    "uvdoc_backbone": ("resnet_configs", "resnet_head", "stage_configs"),
}
PARTS = {"slanext": {"SLANeXtVisionEncoder": "SLANeXtVisionConfig"}}
LEFT_OUT = {"UVDocBridge": "a part that reads another configuration than the class it names"}
FITTED = {"uvdoc_backbone": {"out_features": ["stage1", "stage2", "stage3", "stage4", "stage5", "stage6"]}}
INPUTS = {
    ("PPOCRV5MobileDetModel", "SLANeXtBackbone", "SLANetBackbone"): {
        "hidden_states": "floats(batch, first_channels, height, width)"
    },
    # a line of text, one row high
    ("PPOCRV5MobileRecEncoderWithSVTR", "PPOCRV5ServerRecEncoderWithSVTR", "PPOCRV6SmallRecEncoderWithSVTR"): {
        "hidden_states": "floats(batch, first_channels, 1, 8)"
    },
    "pp_ocrv5_mobile_rec": {"pixel_values": "floats(batch, channels, 96, 160)"},  # much wider than high
}
