"""Parts of models that people train or that checkpoint on their own, where transformers does not export them, or names
no configuration of their own.

By the folder of the model: each class with its configuration class.
"""

TOWERS: dict[str, dict[str, str]] = {
    "aimv2": {"Aimv2TextModel": "Aimv2TextConfig"},
    "bart": {"BartEncoder": "BartConfig", "BartDecoder": "BartConfig"},
    "blenderbot": {"BlenderbotEncoder": "BlenderbotConfig", "BlenderbotDecoder": "BlenderbotConfig"},
    "blip_2": {"Blip2QFormerModel": "Blip2QFormerConfig"},
    "clvp": {  # in transformers 4 they name the configuration of the whole model
        "ClvpDecoder": "ClvpDecoderConfig",
        "ClvpEncoder": "ClvpEncoderConfig",
        "ClvpForCausalLM": "ClvpDecoderConfig",
        "ClvpModel": "ClvpDecoderConfig",
    },
    "csm": {"CsmDepthDecoderForCausalLM": "CsmDepthDecoderConfig"},
    "deepseek_ocr2": {"DeepseekOcr2SamVisionEncoder": "DeepseekOcr2SamVisionConfig"},
    "dia": {"DiaEncoder": "DiaEncoderConfig"},
    "emu3": {"Emu3TextModel": "Emu3TextConfig"},
    "got_ocr2": {"GotOcr2VisionEncoder": "GotOcr2VisionConfig"},
    "instructblip": {"InstructBlipQFormerModel": "InstructBlipQFormerConfig"},
    "instructblipvideo": {"InstructBlipVideoQFormerModel": "InstructBlipVideoQFormerConfig"},
    "kosmos2": {"Kosmos2TextTransformer": "Kosmos2TextConfig"},
    "kosmos2_5": {"Kosmos2_5TextTransformer": "Kosmos2_5TextConfig"},
    "led": {"LEDEncoder": "LEDConfig", "LEDDecoder": "LEDConfig"},
    "m2m_100": {"M2M100Encoder": "M2M100Config", "M2M100Decoder": "M2M100Config"},
    "marian": {"MarianEncoder": "MarianConfig", "MarianDecoder": "MarianConfig"},
    "mbart": {"MBartEncoder": "MBartConfig", "MBartDecoder": "MBartConfig"},
    "moonshine": {"MoonshineEncoder": "MoonshineConfig", "MoonshineDecoder": "MoonshineConfig"},
    "musicgen": {"MusicgenDecoder": "MusicgenDecoderConfig"},
    "musicgen_melody": {"MusicgenMelodyDecoder": "MusicgenMelodyDecoderConfig"},
    "mvp": {"MvpEncoder": "MvpConfig", "MvpDecoder": "MvpConfig"},
    "nllb_moe": {"NllbMoeEncoder": "NllbMoeConfig", "NllbMoeDecoder": "NllbMoeConfig"},
    "opt": {"OPTDecoder": "OPTConfig"},
    "pegasus": {"PegasusEncoder": "PegasusConfig", "PegasusDecoder": "PegasusConfig"},
    "pegasus_x": {"PegasusXEncoder": "PegasusXConfig", "PegasusXDecoder": "PegasusXConfig"},
    "plbart": {"PLBartEncoder": "PLBartConfig", "PLBartDecoder": "PLBartConfig"},
    "qwen2_5_omni": {"Qwen2_5OmniVisionEncoder": "Qwen2_5OmniVisionEncoderConfig"},
    "qwen2_vl": {"Qwen2VisionTransformerPretrainedModel": "Qwen2VLVisionConfig"},
    "qwen3_omni_moe": {
        "Qwen3OmniMoeCode2Wav": "Qwen3OmniMoeCode2WavConfig",
        "Qwen3OmniMoeCode2WavTransformerModel": "Qwen3OmniMoeCode2WavConfig",
        "Qwen3OmniMoeVisionEncoder": "Qwen3OmniMoeVisionEncoderConfig",
    },
    "sam": {"SamVisionEncoder": "SamVisionConfig"},
    "sam_hq": {"SamHQVisionEncoder": "SamHQVisionConfig"},
    "slanext": {"SLANeXtVisionEncoder": "SLANeXtVisionConfig"},
    "speech_to_text": {"Speech2TextEncoder": "Speech2TextConfig", "Speech2TextDecoder": "Speech2TextConfig"},
    "trocr": {"TrOCRDecoder": "TrOCRConfig"},
    "whisper": {"WhisperEncoder": "WhisperConfig", "WhisperDecoder": "WhisperConfig"},
}
