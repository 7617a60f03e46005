# CKPT107 unsafe | model.gradient_checkpointing_enable() | AutoModelForCausalLM.from_pretrained(...) on line 5
# file: train.py
from transformers import AutoModelForCausalLM


def main(loader, optimizer):
    model = AutoModelForCausalLM.from_pretrained("m").to("cuda")
    model.gradient_checkpointing_enable()
    for batch in loader:
        model(**batch).loss.backward()
        optimizer.step()
