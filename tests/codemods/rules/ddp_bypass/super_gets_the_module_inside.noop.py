# CKPT101 unsafe | super().compute_loss
# file: trainer.py
from transformers import Trainer


class PlainTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        return super().compute_loss(self.accelerator.unwrap_model(model), inputs, return_outputs)
