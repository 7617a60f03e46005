# CKPT107 unsafe | tower.gradient_checkpointing_enable() | tower.eval(...) on line 10
# file: train.py
from peft import LoraConfig, get_peft_model
from transformers import CLIPTextConfig, CLIPTextModel


def build():
    tower = CLIPTextModel(CLIPTextConfig())
    tower.requires_grad_(False)
    tower.gradient_checkpointing_enable()
    tower = get_peft_model(tower, LoraConfig())
    return tower.eval()


def loss_of(model, batch):
    return model(**batch).last_hidden_state.sum()


if __name__ == "__main__":
    model = build()
    for batch in range(3):
        loss_of(model, batch).backward()
