"""BART and its relatives: encoders and decoders, not exported, that train alone (transformers 4.52 to 5.24.0)."""

TINY = {"led": {"attention_window": [8, 8]}}
PARTS = {
    "bart": {"BartEncoder": "BartConfig", "BartDecoder": "BartConfig"},
    "blenderbot": {"BlenderbotEncoder": "BlenderbotConfig", "BlenderbotDecoder": "BlenderbotConfig"},
    "led": {"LEDEncoder": "LEDConfig", "LEDDecoder": "LEDConfig"},
    "m2m_100": {"M2M100Encoder": "M2M100Config", "M2M100Decoder": "M2M100Config"},
    "marian": {"MarianEncoder": "MarianConfig", "MarianDecoder": "MarianConfig"},
    "mbart": {"MBartEncoder": "MBartConfig", "MBartDecoder": "MBartConfig"},
    "opt": {"OPTDecoder": "OPTConfig"},
    "pegasus": {"PegasusEncoder": "PegasusConfig", "PegasusDecoder": "PegasusConfig"},
    "pegasus_x": {"PegasusXEncoder": "PegasusXConfig", "PegasusXDecoder": "PegasusXConfig"},
    "plbart": {"PLBartEncoder": "PLBartConfig", "PLBartDecoder": "PLBartConfig"},
    "speech_to_text": {"Speech2TextEncoder": "Speech2TextConfig", "Speech2TextDecoder": "Speech2TextConfig"},
    "trocr": {"TrOCRDecoder": "TrOCRConfig"},
    "whisper": {"WhisperEncoder": "WhisperConfig", "WhisperDecoder": "WhisperConfig"},
}
LEFT_OUT = {("BartPretrainedModel", "PretrainedBartModel"): "a base of other classes, without a forward"}
