"""VisualBERT: regions of an image, and the word that each position refers to (transformers 4.52 to 5.24.0)."""

INPUTS = {
    "VisualBertForRegionToPhraseAlignment": {
        "visual_embeds": "floats(batch, 4, visual_embedding_dim)",
        "visual_attention_mask": "ones(batch, 4)",
        "region_to_phrase_position": "integers(batch, length + 4, below=length)",
        "labels": "parts(batch, length + 4, 4)",
    }
}
