"""KOSMOS-2 and 2.5: image embeddings replace marked tokens (transformers 4.52 to 5.24.0)."""

PARTS = {
    "kosmos2": {"Kosmos2TextTransformer": "Kosmos2TextConfig"},
    "kosmos2_5": {"Kosmos2_5TextTransformer": "Kosmos2_5TextConfig"},
}
INPUTS = {"kosmos-2": {"image_embeds_position_mask": "marked(latent_query_num)"}}
