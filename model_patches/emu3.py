"""Emu3: a map from image codes to tokens, and crops by the sizes of images (transformers 4.52 to 5.24.0)."""

_VISUAL_TOKENS = {f"<|visual token {i:06d}|>": 100 + i for i in range(8)}
TINY = {
    "emu3": {"vocabulary_map": {"<image>": 120, "<|extra_200|>": 121, **_VISUAL_TOKENS}},
    "emu3_vqgan": {"codebook_size": 8, "base_channels": 32, "hidden_size": 128},
}
PARTS = {"emu3": {"Emu3TextModel": "Emu3TextConfig"}}
LEFT_OUT = {"Emu3VQVAE": "a codec without a forward, which other classes call by its parts"}
INPUTS = {"emu3": {"image_sizes": "rows([height, width])"}}
