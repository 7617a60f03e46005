# file: train.py
from diffusers import UNet2DModel

model = UNet2DModel.from_pretrained("m")
model.gradient_checkpointing_enable()
for batch in range(3):
    model(batch).sample.sum().backward()
