# CKPT101 unsafe | return self._fused_loss(unwrapped, inputs) | the Trainer's backward
# file: trainer.py
from transformers import Trainer


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
