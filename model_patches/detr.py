"""The DETR family: object queries and position embeddings that are learned.

`position_embeddings` means rotary tables in most of transformers. Here it is what a block adds to its
queries or keys: learned object queries, a sine embedding with a learned level embedding on top, or the
output of a projection of reference points; all carry gradient (release 4.52 to 5.23). Reference points
carry gradient where they are learned (LW-DETR, RF-DETR); those of the deformable encoders come from the grid.
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(
    families=(
        "conditional_detr",
        "d_fine",
        "dab_detr",
        "deformable_detr",
        "deimv2",
        "deta",
        "detr",
        "grounding_dino",
        "lw_detr",
        "mask2former",
        "maskformer",
        "mm_grounding_dino",
        "oneformer",
        "pp_doclayout_v2",
        "pp_doclayout_v3",
        "rf_detr",
        "rt_detr",
        "rt_detr_v2",
        "table_transformer",
    ),
    gradient=frozenset(
        {"position_embeddings", "LwDetrDecoderLayer.reference_points", "RfDetrDecoderLayer.reference_points"}
    ),
)
