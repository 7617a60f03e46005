# CKPT108 unsafe | embeds[mask] = image | self.get_input_embeddings()(...) on line 8
# CKPT108 unsafe | states += image | self.embed_tokens(...) on line 13
# CKPT108 unsafe | states.masked_scatter_( | self.embed_tokens(...) on line 18
# file: modeling_bar.py
import torch
from transformers import PreTrainedModel


class Bar(PreTrainedModel):
    def forward(self, ids, mask, image, embeds=None):
        if embeds is None:
            embeds = self.get_input_embeddings()(ids)
        embeds[mask] = image
        return embeds

    def added(self, ids, image):
        states = self.embed_tokens(ids)
        states += image
        return states

    def scattered(self, ids, mask, image):
        states = self.embed_tokens(ids)
        states = states.masked_scatter_(mask, image)
        return states

    def copied(self, ids, mask, image):
        embeds = self.get_input_embeddings()(ids).clone()
        embeds[mask] = image
        states = self.embed_tokens(ids)
        states = states + image
        states += image
        return embeds, states

    @torch.no_grad()
    def generate(self, ids, mask, image):
        embeds = self.embed_tokens(ids)
        embeds[mask] = image
        return embeds

    def frozen(self, ids, image):
        with torch.no_grad():
            embeds = self.embed_tokens(ids)
            embeds += image
        return embeds
