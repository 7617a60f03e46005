# file: train.py
from transformers import AutoModelForCausalLM


def main(loader, accelerator):
    model = AutoModelForCausalLM.from_pretrained("m")
    model.gradient_checkpointing_enable()
    model.train()
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        if accelerator.done:
            model.eval()
            break
