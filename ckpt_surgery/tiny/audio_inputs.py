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


def negatable_mask(arguments: ForwardArguments) -> None:
    """A mask of the spectrogram that the model negates."""
    arguments.values["input_features_mask"] = arguments.values["input_features_mask"].bool()


def speech_alone(arguments: ForwardArguments) -> None:
    """Speech instead of text, for models that take either."""
    arguments.values.pop("input_ids", None)
    frames_by_mels(arguments)


def whole_hops(arguments: ForwardArguments) -> None:
    """A waveform of four whole frames, with a channel where the model has one."""
    hop = int(arguments.find("samples_per_token", "hop_length", default=320, part="encoder"))
    channels = (1,) if arguments.find("channels", "audio_channels", "encoder_hidden_size") else ()
    arguments.values["input_values"] = arguments.floats((arguments.batch, *channels, 4 * hop))
    if "padding_mask" in arguments.names:
        arguments.values["padding_mask"] = torch.ones((arguments.batch, 4 * hop), dtype=torch.long)


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
    arguments.values[next(iter(arguments.parameters))] = arguments.floats((arguments.batch, 1, 4 * hop))


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


def spectrogram(arguments: ForwardArguments) -> None:
    """A spectrogram of shape (batch, time, mels), as the vocoders of most families take it."""
    width = int(arguments.find("model_in_dim", default=80))
    arguments.values["spectrogram"] = arguments.floats((arguments.batch, 8, width))


def mel_spectrogram(arguments: ForwardArguments) -> None:
    """A spectrogram of shape (batch, mels, time), long enough for the vocoder's filters."""
    arguments.values["mel_spectrogram"] = arguments.floats((arguments.batch, int(arguments.find("mel_dim")), 8))


def spectrogram_beside_video(arguments: ForwardArguments) -> None:
    """A spectrogram of the size that the embeddings of its patches expect, beside the frames of a video."""
    size = (int(arguments.find("spectrogram_length")), int(arguments.find("frequency_length")))
    arguments.values["audio_values"] = arguments.floats((arguments.batch, 1, *size))


def spectrogram_labels(arguments: ForwardArguments) -> None:
    """The spectrogram that a model is to produce, as its labels."""
    arguments.values["labels"] = arguments.floats((arguments.batch, 8, arguments.mels()))


def encoder_frames(arguments: ForwardArguments) -> None:
    """Audio features under the name of hidden states."""
    width = int(arguments.find("input_dim", "input_size"))
    arguments.values["hidden_states"] = arguments.floats((arguments.batch, _FRAMES, width))
    if "mask" in arguments.names:
        arguments.values["mask"] = torch.ones((arguments.batch, _FRAMES), dtype=torch.long)


def embeddings_alone(arguments: ForwardArguments) -> None:
    """Embeddings instead of tokens, for models that have no embedding or take none."""
    arguments.values.pop("input_ids", None)
    width = int(arguments.find("hidden_size"))
    arguments.values["inputs_embeds"] = arguments.floats((arguments.batch, arguments.length, width))


def labelled_embeddings(arguments: ForwardArguments) -> None:
    """Embeddings instead of tokens, with a label for each."""
    embeddings_alone(arguments)
    arguments.values["labels"] = arguments.tokens((arguments.batch, arguments.length))


def codes(arguments: ForwardArguments) -> None:
    """Codes of every quantizer of a codec, shape (batch, quantizers, time)."""
    shape = (arguments.batch, int(arguments.find("num_quantizers")), 8)
    arguments.values["codes"] = arguments.integers(shape, int(arguments.find("codebook_size")))


def stacked_codes(arguments: ForwardArguments) -> None:
    """Codes of every codebook instead of tokens, shape (batch, time, codebooks)."""
    shape = (arguments.batch, arguments.length, int(arguments.find("num_codebooks")))
    arguments.values["input_ids"] = arguments.integers(shape, int(arguments.find("codebook_size")))


def one_codebook(arguments: ForwardArguments) -> None:
    """Codes of every codebook, and the index of the one to predict."""
    shape = (arguments.batch, arguments.length, int(arguments.find("n_codes_total")))
    arguments.values["input_ids"] = arguments.integers(shape, int(arguments.find("input_vocab_size")))
    arguments.values["codebook_idx"] = int(arguments.find("n_codes_given")) + 1


def two_speakers(arguments: ForwardArguments) -> None:
    """The codes of both speakers of a dialogue beside the text, with labels for text and codes."""
    shape = (arguments.batch, int(arguments.find("num_codebooks")), arguments.length)
    high = int(arguments.find("audio_vocab_size"))
    for name in ("user_audio_codes", "moshi_audio_codes", "audio_labels"):
        arguments.values[name] = arguments.integers(shape, high)
    arguments.values["text_labels"] = arguments.tokens((arguments.batch, arguments.length))


def speaker_and_language(arguments: ForwardArguments) -> None:
    """Units to speak, with the ids of a speaker and a language."""
    arguments.values["input_ids"] = arguments.tokens((arguments.batch, arguments.length))
    for name in ("spkr_id", "lang_id"):
        arguments.values[name] = arguments.integers((arguments.batch, 1), 2)


def frames_of_tokens(arguments: ForwardArguments) -> None:
    """As many frames of audio as the tokens stand for, shape (batch, mels, time)."""
    frames = 2 * int(arguments.find("downsample_factor", default=4)) * arguments.length
    arguments.values["input_features"] = arguments.floats((arguments.batch, arguments.mels(), frames))


def timed_text(arguments: ForwardArguments) -> None:
    """Text with the embedding of the delay that every layer takes."""
    arguments.values["t_cond"] = arguments.floats((1, 1, int(arguments.find("hidden_size"))))


def audio_chunks(arguments: ForwardArguments) -> None:
    """Spectrograms of chunks, shape (chunks, mels, time), with the number of samples that each stands for."""
    if "chunk_sample_lengths" not in arguments.names:
        return
    samples = _FRAMES * int(arguments.find("hop_length", default=160, part="audio"))
    arguments.values["input_features"] = arguments.floats((arguments.batch, arguments.mels(), _FRAMES))
    arguments.values["chunk_sample_lengths"] = torch.full((arguments.batch,), samples)


def reply_to_speak(arguments: ForwardArguments) -> None:
    """Codes of speech, the text that they speak, and the hidden states of the model that wrote it."""
    shape = (arguments.batch, arguments.length)
    arguments.values["input_text_ids"] = arguments.tokens(shape)
    arguments.values["thinker_reply_part"] = arguments.floats((*shape, int(arguments.find("embedding_size"))))


def noisy_spectrogram(arguments: ForwardArguments) -> None:
    """A noisy spectrogram, the codes of its speech, its speaker and the time of the diffusion."""
    batch, repeats, codes_each = arguments.batch, int(arguments.find("repeats")), 12
    steps, mels = codes_each * repeats, int(arguments.find("mel_dim"))
    arguments.values |= {
        "hidden_states": arguments.floats((batch, steps, mels)),
        "condition_vector": arguments.floats((batch, steps, mels)),
        "speaker_embedding": arguments.floats((batch, steps, int(arguments.find("enc_emb_dim")))),
        "quantized_code": arguments.integers((batch, codes_each), int(arguments.find("num_embeds"))),
        "time_step": arguments.floats((batch,)).sigmoid(),
    }


def audio_and_video(arguments: ForwardArguments) -> None:
    """A waveform and a short clip of the same length in time, with full masks of both."""
    hop = int(arguments.find("hop_length", default=1920, part="dac"))
    height, width = 32, 32
    arguments.values["input_values"] = arguments.floats((arguments.batch, 1, 8 * hop))
    arguments.values["pixel_values_videos"] = arguments.floats((arguments.batch, 4, 3, height, width))
    compared_outputs(arguments)


def compared_outputs(arguments: ForwardArguments) -> None:
    """No loss of its own: its scale starts at zero, and with it the gradient of all other parameters."""
    if "return_loss" in arguments.names:
        arguments.values["return_loss"] = False


def image_grids(arguments: ForwardArguments) -> None:
    """Flat patches with their rows and columns."""
    patch, side = int(arguments.find("patch_size", part="radio")), 4
    if "image_grid_hw" in arguments.names:
        shape = (arguments.batch * side * side, arguments.channels() * patch * patch)
        arguments.values["pixel_values"] = arguments.floats(shape)
        arguments.values["image_grid_hw"] = torch.tensor([[side, side]] * arguments.batch)


AUDIO_INPUTS: dict[str, Callable[[ForwardArguments], None]] = {
    "BarkFineModel": one_codebook,
    "CsmBackboneModel": stacked_codes,
    "FastSpeech2ConformerHifiGan": spectrogram,
    "Gemma3nAudioEncoder": padded_spectrogram,
    "GraniteSpeechCTCEncoder": encoder_frames,
    "GraniteSpeechPlusCTCEncoder": encoder_frames,
    "MimiDecoderModel": latents,
    "MoshiForConditionalGeneration": two_speakers,
    "Phi4MultimodalAudioModel": encoder_frames,
    "PocketTTSAudioTokenizerDecoderModel": latents,
    "Qwen2_5OmniTalkerForConditionalGeneration": reply_to_speak,
    "Qwen2_5OmniToken2WavBigVGANModel": mel_spectrogram,
    "Qwen2_5OmniToken2WavDiTModel": noisy_spectrogram,
    "Qwen3OmniMoeCode2Wav": codes,
    "Qwen3OmniMoeCode2WavTransformerModel": embeddings_alone,
    "Qwen3OmniMoeTalkerCodePredictorModel": embeddings_alone,
    "Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration": labelled_embeddings,
    "Qwen3OmniMoeTalkerForConditionalGeneration": embeddings_alone,
    "Qwen3OmniMoeTalkerModel": embeddings_alone,
    "SeamlessM4TCodeHifiGan": speaker_and_language,
    "SeamlessM4TModel": speech_alone,
    "SeamlessM4TTextToUnitForConditionalGeneration": embeddings_alone,
    "SeamlessM4TTextToUnitModel": embeddings_alone,
    "SeamlessM4Tv2Model": speech_alone,
    "SpeechT5ForSpeechToSpeech": spectrogram_labels,
    "SpeechT5HifiGan": spectrogram,
    "VibeVoiceAcousticTokenizerDecoderModel": latents,
    "VibeVoiceAcousticTokenizerEncoderModel": sampled_waveform,
    "VoxtralRealtimeTextModel": timed_text,
    "clap": spectrogram_image,
    "clap_audio_model": spectrogram_image,
    "dots3_note": audio_chunks,
    "dots3_note_audio_encoder": audio_chunks,
    "fastspeech2_conformer": spoken_labels,
    "fastspeech2_conformer_with_hifigan": spoken_labels,
    "fun_asr_nano": stacked_frames,
    "tvlt": spectrogram_beside_video,
    "fun_asr_nano_encoder": stacked_frames,
    "gemma3n": negatable_mask,
    "granite_speech5_ctc": stacked_frames,
    "granite_speech5_encoder": stacked_frames,
    "inkling2": merged_patches,
    "inkling2_loop": merged_patches,
    "inkling2_vision": merged_patches,
    "inkling_audio": mel_codes,
    "inkling_mm_model": mel_codes,
    "inkling_vision": mel_codes,
    "muse_glimmer_assistant": drafted_block,
    "muse_spark": whole_hops,
    "muse_spark_audio": whole_hops,
    "nemotron_h_omni": image_grids,
    "neucodec": waveform_and_features,
    "pe_audio": compared_outputs,
    "pe_audio_video": audio_and_video,
    "pe_audio_video_encoder": audio_and_video,
    "pe_video": compared_outputs,
    "pi0": robot,
    "qwen3_asr": whole_windows,
    "qwen3_asr_encoder": whole_windows,
    "vibevoice": whole_hops,
    "vibevoice_acoustic_tokenizer": whole_hops,
    "vibevoice_asr": whole_hops,
    "voxtral_realtime": frames_of_tokens,
    "xcodec2": waveform_and_features,
}
"""The change to the inputs by class or model type."""
