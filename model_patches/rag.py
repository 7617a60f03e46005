"""RAG: the passages that a retriever found, with their scores (transformers 4.52 to 5.24.0)."""

DEFAULTS = {"rag": {"question_encoder": {"model_type": "dpr"}, "generator": {"model_type": "bart"}}}
INPUTS = {
    "rag": {
        "context_input_ids": "tokens(batch * n_docs, length)",
        "context_attention_mask": "ones(batch * n_docs, length)",
        "doc_scores": "floats(batch, n_docs)",
        "decoder_input_ids": "tokens(batch, length)",
    }
}
