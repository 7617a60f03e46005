# file: trainer.py
from transformers import Trainer


class FusedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        unwrapped = self.accelerator.unwrap_model(model)
        if self.is_zero3 or model is not unwrapped:
            return self.redirect(model, unwrapped, self._fused_loss, unwrapped, inputs)
        return self._fused_loss(unwrapped, inputs)

    def _fused_loss(self, model, inputs):
        return model(**inputs).loss

    def log_temperature(self, model):
        return self.accelerator.unwrap_model(model).temperature.item()
