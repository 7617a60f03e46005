# file: train.py
from transformers import LlamaConfig, LlamaForCausalLM

model = LlamaForCausalLM(LlamaConfig())
model.gradient_checkpointing_enable()
for batch in range(3):
    model(batch).loss.backward()
model.eval()
# file: of_a_loaded_configuration.py
from transformers import AutoConfig, AutoModel

model = AutoModel.from_config(AutoConfig.from_pretrained("m"))
model.gradient_checkpointing_enable()
for batch in range(3):
    model(batch).loss.backward()
