"""RecurrentGemma: its recurrent state lies on its modules, and only a forward that makes a cache starts it anew.

Without a cache up to 5.0.0 goes on with the state of the step before: the second backward raises "Trying to backward
through the graph a second time" (measured on 4.57.6).
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(cache_decides={"RecurrentGemmaModel": "5.1.0"})
