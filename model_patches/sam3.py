"""SAM 3: the decoder's cross attention mask is learned.

`vision_cross_attn_mask` comes out of two small networks over box positions (`box_rpb_embed_x`, `_y`) and
carries gradient, unlike every other mask (5.x; only the lite text model claims checkpointing).
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(families=("sam3", "sam3_lite_text"), gradient=frozenset({"vision_cross_attn_mask"}))
