# CKPT107 unsafe | model.gradient_checkpointing_enable() | once model.eval() on line 12 has run
# file: train.py
from transformers import AutoModelForCausalLM


def main(loader, accelerator):
    model = AutoModelForCausalLM.from_pretrained("m")
    model.gradient_checkpointing_enable()
    model = accelerator.prepare(model)
    model.train()
    for step, batch in enumerate(loader):
        accelerator.backward(model(**batch).loss)
        if step % 100 == 0:
            model.eval()
            print(model(**batch).loss)
