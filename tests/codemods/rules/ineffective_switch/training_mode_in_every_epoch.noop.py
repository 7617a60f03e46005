# file: train.py
from transformers import AutoModelForCausalLM


def main(loader):
    model = AutoModelForCausalLM.from_pretrained("m")
    model.gradient_checkpointing_enable()
    for epoch in range(3):
        model.train()
        for batch in loader:
            model(**batch).loss.backward()
        model.eval()
