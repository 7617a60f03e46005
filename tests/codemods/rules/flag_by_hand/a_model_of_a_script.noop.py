# CKPT014 unsafe | model.gradient_checkpointing = True | model is a model
# CKPT014 unsafe | encoder.gradient_checkpointing = True | encoder is a model
import transformers

encoder = transformers.BertModel.from_pretrained("bert")
encoder.gradient_checkpointing = True


def main():
    model = transformers.AutoModelForCausalLM.from_config(read())
    if model.is_ready:
        model.gradient_checkpointing = True
