"""LUKE: entities with the positions of their mentions (transformers 4.52 to 5.24.0)."""

INPUTS = {
    ("LukeForEntityClassification", "LukeForEntityPairClassification", "LukeForEntitySpanClassification"): {
        "entity_ids": "integers(batch, 2, least=1, below=entity_vocab_size)",
        "entity_attention_mask": "ones(batch, 2)",
        "entity_token_type_ids": "zeros(batch, 2)",
        "entity_position_ids": "rows([[1, 2, -1, -1], [5, 6, -1, -1]])",
        "entity_start_positions": "rows([1, 5])",
        "entity_end_positions": "rows([2, 6])",
    }
}
