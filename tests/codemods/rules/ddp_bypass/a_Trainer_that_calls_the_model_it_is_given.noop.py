# file: trainer.py
from transformers import Trainer


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        with self.accelerator.unwrap_model(model).disable_adapter():
            reference = self.reference(**inputs)
        loss = self.weigh(outputs.logits, reference.logits, self.model.config.vocab_size)
        return (loss, outputs) if return_outputs else loss
