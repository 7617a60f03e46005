# CKPT101 unsafe | self.model(**inputs)
# CKPT101 unsafe | return self._fused_loss(unwrapped, inputs) | the Trainer's backward
# CKPT101 unsafe | super().compute_loss
# file: trainer.py
from transformers import Trainer


class OwnTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = self.model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class FusedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        unwrapped = self.accelerator.unwrap_model(model)
        if self.is_zero3 or self.is_fsdp_enabled:
            return self.redirect(model, unwrapped, self._fused_loss, unwrapped, inputs)
        return self._fused_loss(unwrapped, inputs)

    def _fused_loss(self, model, inputs):
        backbone = model.get_decoder()
        hidden = backbone(inputs["input_ids"]).last_hidden_state
        return self.fused(hidden, model.get_output_embeddings().weight)


class PlainTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        return super().compute_loss(self.accelerator.unwrap_model(model), inputs, return_outputs)


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        with self.accelerator.unwrap_model(model).disable_adapter():
            reference = self.reference(**inputs)
        loss = self.weigh(outputs.logits, reference.logits, self.model.config.vocab_size)
        return (loss, outputs) if return_outputs else loss


class RedirectingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        unwrapped = self.accelerator.unwrap_model(model)
        if self.is_zero3 or model is not unwrapped:
            return self.redirect(model, unwrapped, self._fused_loss, unwrapped, inputs)
        return self._fused_loss(unwrapped, inputs)

    def _fused_loss(self, model, inputs):
        return model(**inputs).loss

    def log_temperature(self, model):
        return self.accelerator.unwrap_model(model).temperature.item()
