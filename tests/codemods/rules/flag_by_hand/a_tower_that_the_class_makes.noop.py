# CKPT014 unsafe | self.tower.gradient_checkpointing = True | call self.tower.gradient_checkpointing_enable()
# CKPT014 unsafe | self.text.gradient_checkpointing = wanted | self.text is a model of transformers
from torch import nn
from transformers import AutoModel
from transformers.models.siglip import SiglipVisionModel as Tower


class Policy(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.text = None
        self.tower = Tower(config.vision).to(config.device)
        text: nn.Module = AutoModel.from_pretrained(config.text)
        self.text = text.encoder

    def switch_on(self, wanted):
        self.tower.gradient_checkpointing = True
        self.text.gradient_checkpointing = wanted
