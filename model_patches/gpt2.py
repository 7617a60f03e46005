"""GPT-2: while its flag is on, the model gives its blocks no cache, also not the one that its caller has given it.

So 4.57.6 and 5.23.0 drop what an earlier forward has left there, and say nothing.
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(
    families=("gpt2", "decision_transformer"),
    drops_cache=frozenset({"GPT2Model", "DecisionTransformerGPT2Model"}),
)
