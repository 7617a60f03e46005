"""The inline checkpoint passes two arguments by position in another order than the layer takes them.

`output_attentions` lands on `use_cache`, and None on `output_attentions`: the layer returns its keys and values,
which the decoder collects as attentions.
"""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from benchmarks.faults.script import cured, number, train

FAULT = {
    "source": "https://github.com/huggingface/transformers/issues/23366",
    "kind": "arguments lost",
    "saw": "with gradient checkpointing, `attentions` of OPT are tuples of keys and values",
    "right": "one tensor of attention probabilities a layer",
    "cause": ["CKPT002", "output_attentions", "use_cache", "attentions", "output differs", "outputs differ"],
    "cure": "wrap",
}
MENDED = False
MODES = ("reentrant",)


class SmallConfig(PretrainedConfig):
    model_type = "small"
    hidden_size = 16
    vocab_size = 32
    layers = 2


class SmallAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, hidden_states, attention_mask):
        query, key, value = self.qkv(hidden_states).chunk(3, -1)
        weights = (query @ key.transpose(1, 2) / query.shape[-1] ** 0.5 + attention_mask).softmax(-1)
        return self.out_proj(weights @ value), weights, (key, value)


class SmallDecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = SmallAttention(config.hidden_size)
        self.fc1 = nn.Linear(config.hidden_size, 32)
        self.fc2 = nn.Linear(32, config.hidden_size)

    if MENDED:

        def forward(
            self,
            hidden_states,
            attention_mask,
            layer_head_mask=None,
            past=None,
            output_attentions=False,
            use_cache=False,
        ):
            return self._run(hidden_states, attention_mask, output_attentions, use_cache)

    else:

        def forward(
            self,
            hidden_states,
            attention_mask,
            layer_head_mask=None,
            output_attentions=False,
            use_cache=False,
            past=None,
        ):
            return self._run(hidden_states, attention_mask, output_attentions, use_cache)

    def _run(self, hidden_states, attention_mask, output_attentions, use_cache):
        attended, weights, present = self.self_attn(hidden_states, attention_mask)
        hidden_states = hidden_states + attended
        hidden_states = hidden_states + self.fc2(torch.relu(self.fc1(hidden_states)))
        outputs = (hidden_states,)
        outputs += (weights,) if output_attentions else ()
        return outputs + ((present,) if use_cache else ())


class SmallForCausalLM(PreTrainedModel):
    config_class = SmallConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(SmallDecoderLayer(config) for _ in range(config.layers))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def forward(self, input_ids, labels=None, output_attentions=False):
        hidden_states = self.embed_tokens(input_ids)
        mask = torch.triu(torch.full((input_ids.shape[1],) * 2, float("-inf")), diagonal=1)
        attentions = ()
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:

                def calls(module):
                    def forward(*inputs):
                        return module(*inputs, output_attentions, None)

                    return forward

                outputs = torch.utils.checkpoint.checkpoint(calls(layer), hidden_states, mask, None, None)
            else:
                outputs = layer(hidden_states, mask, output_attentions=output_attentions, use_cache=False)
            hidden_states = outputs[0]
            if output_attentions:
                attentions += (outputs[1],)
        logits = self.lm_head(hidden_states)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return CausalLMOutput(loss=loss, logits=logits, attentions=attentions or None)


def make():
    torch.manual_seed(0)
    model = SmallForCausalLM(SmallConfig())
    model.gradient_checkpointing_enable()
    ids = torch.arange(24).reshape(2, 12)
    return model.train(), {"input_ids": ids, "labels": ids.roll(-1, 1), "output_attentions": True}


def symptom():
    model, batch = make()
    cured(model)
    returned = model(**batch).attentions
    return number("attentions that are probabilities", sum(isinstance(each, torch.Tensor) for each in returned), 2)


if __name__ == "__main__":
    train(make)
