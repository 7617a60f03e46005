"""ViLT: pairs of images have a token type of their own (transformers 4.52 to 5.24.0)."""

OPTIONS = {"ViltForImagesAndTextClassification": {"num_images": 2, "modality_type_vocab_size": 3}}
INPUTS = {"ViltForImagesAndTextClassification": {"pixel_values": "floats(batch, 2, channels, height, width)"}}
