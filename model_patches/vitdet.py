"""ViTDet: an image size whose patches its windows divide (transformers 4.52 to 5.24.0)."""

TINY = {"vitdet": {"image_size": 64, "pretrain_image_size": 64}}
