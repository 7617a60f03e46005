# file: before.py
from peft import LoraConfig, get_peft_model

net = load()
net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
net = get_peft_model(net, LoraConfig())
# file: other_model.py
from peft import LoraConfig, get_peft_model

net = get_peft_model(load(), LoraConfig())
tower.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
# file: asked.py
from peft import LoraConfig, get_peft_model

net = get_peft_model(load(), LoraConfig())
net.enable_input_require_grads()
net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
# file: not_reentrant.py
from peft import LoraConfig, get_peft_model

net = get_peft_model(load(), LoraConfig())
net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
# file: sees_to_it.py
from peft import LoraConfig, get_peft_model
from trl import SFTTrainer

net = get_peft_model(load(), LoraConfig())
net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
SFTTrainer(net).train()
# file: copies/modeling_old.py
from .modeling_utils import PreTrainedModel


class Old(PreTrainedModel):
    def forward(self, ids, image):
        states = self.embed_tokens(ids)
        states += image
        return states
