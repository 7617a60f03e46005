"""The model stays in evaluation mode, as `from_pretrained` returns it: transformers checkpoints nothing."""

from benchmarks.cases.toys import fit, llama

TOLD = {"says": ["in evaluation mode", "model.train()"], "never": ["no model was trained", "--wrap"]}
DOORS = {"run": TOLD, "watch": TOLD, "check": {}}

model = llama().eval()
model.gradient_checkpointing_enable()
fit(model)
