"""ViTDet: an image into whose patches its windows fit (4.52 to 5.24.0)."""

TINY = {"vitdet": {"image_size": 64, "pretrain_image_size": 64}}
