"""Adapters in a vision tower get no gradient in reentrant mode: only text embeddings ask for one (PEFT #2880)."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from benchmarks.cases.toys import fit

NEEDS = ["peft", "transformers<5"]
DOORS = {
    "run": {"cures": True, "says": ["3 of 3"]},
    "watch": {"says": ["vision_tower", "needs gradient", "use_reentrant=False"]},
}

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
vision = CLIPVisionConfig(image_size=16, patch_size=8, **sizes)
text = LlamaConfig(vocab_size=64, **sizes)
kinds = {"vision_config": vision, "text_config": text, "image_token_index": 63, "image_seq_length": 4}
config = LlavaConfig(vision_feature_layer=-1, **kinds)
adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
model = get_peft_model(LlavaForConditionalGeneration(config), adapters).train()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
model.enable_input_require_grads()
ids = torch.arange(24).reshape(2, 12)
ids[:, 2:6] = 63
batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.ones(2, 3, 16, 16)}
fit(model, lambda: model(labels=ids, **batch).loss)
