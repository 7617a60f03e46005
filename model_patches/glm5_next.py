"""GLM-5 Next: the indexer pools as many keys as fit the tiny text (transformers 5.23.0 to 5.24.0)."""

TINY = {"glm5_next_text": {"index_kpool": 4}}
