# CKPT101 unsafe | self.model(**inputs)
# file: trainer.py
from transformers import Trainer


class OwnTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = self.model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss
