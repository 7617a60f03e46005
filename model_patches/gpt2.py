"""GPT-2: while its flag is on, the model gives its blocks no cache, also not the one that its caller has given it."""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(
    families=("gpt2", "decision_transformer"),
    drops_cache=frozenset({"GPT2Model", "DecisionTransformerGPT2Model"}),
)
