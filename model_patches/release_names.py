"""What libraries call the parts of checkpointing: arguments, methods, flags, classes, by their roles.

Where releases differ, a role is a tuple, the latest name first: if a release renames something, the name goes here and
the release into `RELEASES`. Facts only; a test compares them with the source of the installed release.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

CACHE_ARGUMENT = ("cache", "past_key_values", "cache_params")
"""The argument of a model that takes a `Cache`."""
CACHE_SWITCH = "use_cache"
"""The argument that makes a model create a cache of its own."""
CACHE_STOPPERS = ("check_model_inputs", "merge_with_config_defaults")
"""Decorators of forwards that set that argument to False while a model trains under checkpointing."""
CACHE_CLASS = "Cache"
"""The class from which all caches descend."""

SWITCH_ON = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
"""The method of a model that switches checkpointing on. In a release with both, the older is a deprecated alias."""
SWITCH_OFF = ("activation_checkpointing_disable", "gradient_checkpointing_disable")
"""The method that switches it off."""
SWITCH_OPTIONS = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
"""The argument of the method that switches it on which takes the options of torch's `checkpoint`."""
INNER_SWITCH = "_set_gradient_checkpointing"
"""The method of a model of transformers that these call."""

FLAG = "gradient_checkpointing"
"""The attribute, True or False, that says whether a module checkpoints."""
FUNCTION = "_gradient_checkpointing_func"
"""The attribute of a module that holds the function with which it checkpoints."""
CLAIM = "supports_gradient_checkpointing"
"""The attribute of a model of transformers that says whether it can checkpoint."""
NON_REENTRANT_SINCE = "5.0"
"""The first release in which checkpointing is not reentrant by default."""
ATTENTION_NAME = "_attn_implementation"
"""The attribute of a configuration that names the attention function of its modules."""
ATTENTION_REGISTRY = "ALL_ATTENTION_FUNCTIONS"
"""The registry of `modeling_utils` in which that name is looked up, unless a file has its own."""
EAGER_NAME, EAGER_FUNCTION = "eager", "eager_attention_forward"
"""The name that is not in the registry, and the function of a model's own file that it means."""
LAYER_CLASS = "GradientCheckpointingLayer"
"""The class of blocks that checkpoint when their flag says so."""
CLEARED: Mapping[str, tuple[str, str]] = {
    "use_cache": ("", ""),
    "cache": ("5.24", ""),
    "past_key_values": ("", "5.24"),
    "past_key_value": ("", "5.17"),
    "layer_past": ("", ""),
}
"""The arguments that the layer class clears before it checkpoints, each with the first release that clears it and the
first that no longer does; "" if there is none from `CLEARS_SINCE` on."""
CLEARS_SINCE = "4.53"
"""Before this release the layer class clears nothing."""
LAYERS_SINCE = "4.53"
"""From this release on, stacks of transformers' models hold such layers, except those of `WITHOUT_LAYERS`."""
WITHOUT_LAYERS = (
    *(
        "CLIPSegDecoder",
        "Clvp",
        "Deta",
        "Florence2Vision",
        "GPTBigCode",
        "Gemma3nAudio",
        "Gemma4Audio",
        "GroundingDino",
    ),
    *("MMGroundingDino", "Mllama", "Phi4MultimodalAudio", "Sam3LiteText", "SwiftFormer", "Van", "Zamba", "ZoeDepth"),
)
"""Beginnings of the names of models with plain blocks in a stack in 4.57.6 or 5.23.0."""
KEEPS_CACHE = "_can_checkpoint_with_cache"
"""The attribute of a block that says that it only reads its cache and never writes it."""
RECORDER = "check_model_inputs.<locals>"
"""Part of the name of a forward that transformers 4 puts in place of another for a single call."""
INPUT_GRADIENTS = "enable_input_require_grads"
"""The method of a model that makes the outputs of its embeddings require gradients."""
EMBEDDING_HANDLES = ("_require_grads_hook", "_require_grads_hooks")
"""The attributes that hold the handles of hooks on embeddings; late releases have both."""

DIFFUSERS_SWITCH = "enable_gradient_checkpointing"
"""The method of a model of diffusers that switches checkpointing on."""
DIFFUSERS_SWITCH_OFF = "disable_gradient_checkpointing"
"""The method that switches it off."""
DIFFUSERS_FUNCTION = "gradient_checkpointing_func"
"""The argument of `DIFFUSERS_SWITCH` that takes the function to checkpoint with, if the release has one."""
DIFFUSERS_CLAIM = "_supports_gradient_checkpointing"
"""The attribute of a model of diffusers that says whether it can checkpoint."""
TIMM_SWITCH = "set_grad_checkpointing"
"""The method of models of timm and open_clip that switches checkpointing on and off."""

TRAINING_SWITCH = ("activation_checkpointing", "gradient_checkpointing")
"""The argument of a Trainer, and the option of its scripts, that switches checkpointing on."""

RELEASES: Mapping[str, tuple[str, str]] = {
    "cache": ("5.24.0", ""),
    "past_key_values": ("", "5.23.0"),
    "cache_params": ("", "5.23.0"),
    "activation_checkpointing_enable": ("5.23.0", ""),
    "activation_checkpointing_disable": ("5.23.0", ""),
    "activation_checkpointing_kwargs": ("5.23.0", ""),
    "activation_checkpointing": ("5.23.0", ""),
    "check_model_inputs": ("4.54.0", ""),
    "merge_with_config_defaults": ("5.3.0", ""),
    "layer_past": ("4.53.0", ""),
    KEEPS_CACHE: ("5.15.0", ""),
    RECORDER: ("4.54.0", ""),
    "_require_grads_hooks": ("5.0.0", ""),
}
"""The first and the last release of transformers with a name, each "" if there is none from 4.52.4 on."""


def known_name(role: tuple[str, ...], names: Container[str]) -> str | None:
    """Return the latest name of this role that is among `names`; None if none is."""
    return next((name for name in role if name in names), None)
