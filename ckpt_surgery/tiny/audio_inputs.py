"""Inputs of audio: waveforms, spectrograms, codes of codecs, latents; one function for each form.

Each changes the arguments of a forward in place, as those in `family_inputs` do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ckpt_surgery.tiny.arguments import ForwardArguments

_FRAMES = 64
"""Time steps of audio features: most encoders keep every second or fourth."""


def spectrogram_image(arguments: ForwardArguments) -> None:
    """A spectrogram with one channel, shape (batch, 1, time, mels), for encoders that cut it into patches."""
    if "input_features" in arguments.names:
        arguments.values["input_features"] = arguments.floats((arguments.batch, 1, _FRAMES, arguments.mels()))


def stacked_frames(arguments: ForwardArguments) -> None:
    """Audio features in which each row holds several neighbouring frames."""
    width = arguments.mels() * int(arguments.find("num_stacked_frames", default=4))
    arguments.values["input_features"] = arguments.floats((arguments.batch, _FRAMES, width))
    _masked(arguments, _FRAMES)


def frames_by_mels(arguments: ForwardArguments) -> None:
    """A spectrogram of shape (batch, time, mels) with its mask."""
    arguments.values["input_features"] = arguments.floats((arguments.batch, _FRAMES, arguments.mels()))
    _masked(arguments, _FRAMES)


def whole_windows(arguments: ForwardArguments) -> None:
    """A spectrogram as long as two windows of the encoder, shape (batch, mels, time)."""
    frames = 4 * int(arguments.find("n_window", default=50))
    arguments.values["input_features"] = arguments.floats((arguments.batch, arguments.mels(), frames))
    _masked(arguments, frames)


def _masked(arguments: ForwardArguments, frames: int) -> None:
    """A full mask of audio features under the name that the forward takes."""
    for name in ("input_features_mask", "attention_mask"):
        if name in arguments.names and not (name == "attention_mask" and "input_ids" in arguments.values):
            arguments.values[name] = torch.ones((arguments.batch, frames), dtype=torch.long)
            return


def padded_spectrogram(arguments: ForwardArguments) -> None:
    """A spectrogram, and a mask that is true where there is padding."""
    shape = (arguments.batch, _FRAMES, arguments.mels())
    arguments.values["audio_mel"] = arguments.floats(shape)
    arguments.values["audio_mel_mask"] = torch.zeros(shape[:2], dtype=torch.bool)


def speech_alone(arguments: ForwardArguments) -> None:
    """Speech instead of text, for models that take either."""
    arguments.values.pop("input_ids", None)
    frames_by_mels(arguments)


def whole_hops(arguments: ForwardArguments) -> None:
    """A waveform of eight whole frames, with a channel where the model has one."""
    hop = int(arguments.find("samples_per_token", "hop_length", default=320, part="encoder"))
    channels = (1,) if arguments.find("channels", "audio_channels", "encoder_hidden_size") else ()
    arguments.values["input_values"] = arguments.floats((arguments.batch, *channels, 8 * hop))


def waveform_and_features(arguments: ForwardArguments) -> None:
    """A waveform and the features of the same audio, one frame each per code."""
    hop = int(arguments.find("encoder_hop_length", "hop_length"))
    frames = 16
    arguments.values["input_values"] = arguments.floats((arguments.batch, 1, frames * hop))
    arguments.values["input_features"] = arguments.floats((arguments.batch, frames, arguments.mels()))


def latents(arguments: ForwardArguments) -> None:
    """Latent channels over time, as the decoder of a codec takes them."""
    width = int(arguments.find("hidden_size"))
    arguments.values[next(iter(arguments.parameters))] = arguments.floats((arguments.batch, width, 8))


def sampled_waveform(arguments: ForwardArguments) -> None:
    """A waveform with a channel under the name of the forward's first argument."""
    hop = int(arguments.find("hop_length"))
    arguments.values[next(iter(arguments.parameters))] = arguments.floats((arguments.batch, 1, 8 * hop))


def mel_codes(arguments: ForwardArguments) -> None:
    """Discrete levels of each mel bin, shape (batch, time, bins)."""
    if "audio_input_ids" in arguments.names:
        bins, levels = int(arguments.find("n_mel_bins")), int(arguments.find("mel_vocab_size"))
        arguments.values["audio_input_ids"] = arguments.integers((arguments.batch, 6, bins), levels)
    if "pixel_values" in arguments.names:
        patch, frames = int(arguments.find("patch_size")), int(arguments.find("temporal_patch_size"))
        arguments.values["pixel_values"] = arguments.floats(
            (2 * arguments.batch, frames, patch, patch, arguments.channels())
        )


def merged_patches(arguments: ForwardArguments) -> None:
    """Squares of patches with the channels last, one per token, and a grid that counts the tokens."""
    side = int(arguments.find("patch_size")) * int(arguments.find("spatial_merge_size"))
    if "pixel_values" in arguments.names:
        arguments.values["pixel_values"] = arguments.floats((4 * arguments.batch, side, side, arguments.channels()))
        arguments.values["image_grid_thw"] = torch.tensor([[1, 2, 2]] * arguments.batch)


def drafted_block(arguments: ForwardArguments) -> None:
    """Embeddings of a block to draft, and the hidden states of several layers before it."""
    width = int(arguments.find("hidden_size"))
    layers = len(arguments.find("target_layer_ids"))
    arguments.values["noise_embeds"] = arguments.floats((arguments.batch, 8, width))
    arguments.values["context_hidden_states"] = arguments.floats((arguments.batch, arguments.length, layers * width))


def spoken_labels(arguments: ForwardArguments) -> None:
    """Durations, pitch and energy of each token, and the spectrogram that they add up to."""
    steps, each = arguments.length, 2
    arguments.values |= {
        "spectrogram_labels": arguments.floats((arguments.batch, each * steps, int(arguments.find("num_mel_bins")))),
        "duration_labels": torch.full((arguments.batch, steps), each),
        "pitch_labels": arguments.floats((arguments.batch, steps, 1)),
        "energy_labels": arguments.floats((arguments.batch, steps, 1)),
    }


def robot(arguments: ForwardArguments) -> None:
    """One camera image per sample, and the state and the actions of a robot."""
    steps, height, width = int(arguments.find("chunk_size")), *arguments.image()
    shape = (arguments.batch, 1, arguments.channels(), height, width)
    arguments.values["pixel_values"] = arguments.floats(shape)
    arguments.values["pixel_attention_mask"] = torch.ones(shape[:2], dtype=torch.bool)
    if "state" in arguments.names:
        arguments.values["state"] = arguments.floats((arguments.batch, int(arguments.find("max_state_dim"))))
        arguments.values["actions"] = arguments.floats((arguments.batch, steps, int(arguments.find("max_action_dim"))))
    else:
        width = int(arguments.config.dit_config.hidden_size)
        arguments.values["action_embeds"] = arguments.floats((arguments.batch, steps, width))


AUDIO_INPUTS: dict[str, Callable[[ForwardArguments], None]] = {
    "Gemma3nAudioEncoder": padded_spectrogram,
    "MimiDecoderModel": latents,
    "PocketTTSAudioTokenizerDecoderModel": latents,
    "SeamlessM4TModel": speech_alone,
    "SeamlessM4Tv2Model": speech_alone,
    "VibeVoiceAcousticTokenizerDecoderModel": latents,
    "VibeVoiceAcousticTokenizerEncoderModel": sampled_waveform,
    "clap": spectrogram_image,
    "clap_audio_model": spectrogram_image,
    "fastspeech2_conformer": spoken_labels,
    "fastspeech2_conformer_with_hifigan": spoken_labels,
    "fun_asr_nano": stacked_frames,
    "fun_asr_nano_encoder": stacked_frames,
    "granite_speech5_ctc": stacked_frames,
    "granite_speech5_encoder": stacked_frames,
    "inkling2": merged_patches,
    "inkling2_vision": merged_patches,
    "inkling_audio": mel_codes,
    "inkling_mm_model": mel_codes,
    "inkling_vision": mel_codes,
    "muse_glimmer_assistant": drafted_block,
    "muse_spark": whole_hops,
    "muse_spark_audio": whole_hops,
    "neucodec": waveform_and_features,
    "pi0": robot,
    "qwen3_asr": whole_windows,
    "qwen3_asr_encoder": whole_windows,
    "vibevoice": whole_hops,
    "vibevoice_acoustic_tokenizer": whole_hops,
    "vibevoice_asr": whole_hops,
    "xcodec2": waveform_and_features,
}
"""The change to the inputs by class or model type."""
