"""Jev: one prompt with several questions and their options (transformers 5.23.0 to 5.24.0)."""

INPUTS = {
    "jev": {
        "input_ids": "tokens(1, length)",
        "attention_mask": None,
        "marks": "constant([[4, 8]])",
        "num_options": "constant([[2, 2]])",
        "question_type_ids": "constant([[0, 1]])",
    }
}
