from functools import wraps

from transformers.models.llama import modeling_llama


def timed(model, clock):
    for layer in model.model.layers:
        inner = layer.forward

        @wraps(inner)
        def forward(*args, **kwargs):
            with clock:
                return inner(*args, **kwargs)

        layer.forward = forward


def counted(wrapper):
    modeling_llama.LlamaDecoderLayer.forward = wrapper(modeling_llama.LlamaDecoderLayer.forward)
