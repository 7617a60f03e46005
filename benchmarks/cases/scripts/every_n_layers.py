"""The script asks for every second layer: so does what takes its place."""

from benchmarks.cases.toys import fit, llama

NEEDS = ["transformers>=5.23"]
DOORS = {"run": {"says": ["2 of 4"]}, "watch": {"says": ["2 of 4"]}}

model = llama(num_hidden_layers=4)
model.gradient_checkpointing_enable(every_n_layers=2)
fit(model)
