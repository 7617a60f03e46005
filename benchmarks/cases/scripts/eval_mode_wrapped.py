"""`wrap_blocks` and a guard on a model in evaluation mode: the table says what is true."""

from benchmarks.cases.toys import fit, kept_bytes, llama, tokens
from ckpt_surgery import guard, wrap_blocks

DOORS = {"plain": {"says": ["in evaluation mode", "model.train()"], "never": ["3 of 3 checkpointed"]}}

model = llama().eval()
model.gradient_checkpointing_enable()
before = kept_bytes(lambda: model(**tokens()))
with guard(model) as watch:
    fit(model)
print(watch.report())
print(wrap_blocks(model))
assert kept_bytes(lambda: model(**tokens())) <= before
