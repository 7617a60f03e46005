"""An evaluation at step 2 leaves the model in evaluation mode."""

from benchmarks.cases.toys import fit, llama

TOLD = {"says": ["in evaluation mode", "model.train()"], "never": ["no model was trained"]}
DOORS = {"run": TOLD, "watch": TOLD}

model = llama()
model.gradient_checkpointing_enable({"use_reentrant": False})
fit(model, steps=2)
model.eval()
fit(model)
