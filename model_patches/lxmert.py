"""LXMERT: features and positions of detected objects (transformers 4.52 to 5.24.0)."""

INPUTS = {
    "lxmert": {"visual_feats": "floats(batch, 4, visual_feat_dim)", "visual_pos": "shares(batch, 4, visual_pos_dim)"}
}
