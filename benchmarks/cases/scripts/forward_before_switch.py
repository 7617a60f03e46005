"""A forward in training mode comes before checkpointing is switched on, as a look at the shapes does."""

from benchmarks.cases.toys import fit, llama, tokens

PROVED = {"says": ["3 of 3 blocks proved"], "never": ["without checkpointing"]}
DOORS = {"run": PROVED, "watch": PROVED}

model = llama()
model(**tokens())
model.gradient_checkpointing_enable()
fit(model)
