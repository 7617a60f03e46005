"""RetriBERT: a query and a document in place of one text (transformers 4.52 to 4.57.6)."""

OPTIONS = {"RetriBertModel": {"position_embedding_type": "absolute"}}
_IDS, _MASK = "tokens(batch, length)", "ones(batch, length)"
INPUTS = {
    "retribert": {
        "input_ids_query": _IDS,
        "attention_mask_query": _MASK,
        "input_ids_doc": _IDS,
        "attention_mask_doc": _MASK,
    }
}
