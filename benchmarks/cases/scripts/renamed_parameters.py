"""torch's checkpoint_wrapper renames parameters: a filter by name saves nothing."""

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from benchmarks.cases.toys import Block, Stack, fit, squares

SEEN = {"says": ["3 of 3 blocks proved", "_checkpoint_wrapped_module"], "never": ["--wrap"]}
DOORS = {"run": SEEN, "watch": SEEN}

model = Stack(Block)
apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
fit(model, squares(model))
trained = {name for name, _ in model.named_parameters()}
print("saved:", sum(name in trained for name in get_model_state_dict(model)), "of", len(trained))
