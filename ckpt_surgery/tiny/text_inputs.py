"""Inputs of models of text: entities, passages, marks, states that another model computed; one function for each form.

Each changes the arguments of a forward in place, as those in `family_inputs` do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ckpt_surgery.tiny.arguments import ForwardArguments


def entities(arguments: ForwardArguments) -> None:
    """Two entities in each text, with their positions."""
    shape = (arguments.batch, 2)
    mention = int(arguments.find("max_mention_length", default=4))
    places = torch.tensor([[1, 2], [5, 6]])
    arguments.values |= {
        "entity_ids": arguments.integers(shape, int(arguments.find("entity_vocab_size", default=8)) - 1) + 1,
        "entity_attention_mask": torch.ones(shape, dtype=torch.long),
        "entity_token_type_ids": torch.zeros(shape, dtype=torch.long),
        "entity_position_ids": torch.nn.functional.pad(places, (0, mention - 2), value=-1).repeat(shape[0], 1, 1),
    }
    if "entity_start_positions" in arguments.names:
        arguments.values |= {"entity_start_positions": places[:, :1].T.repeat(shape[0], 1)}
        arguments.values |= {"entity_end_positions": places[:, 1:].T.repeat(shape[0], 1)}


def passages(arguments: ForwardArguments) -> None:
    """The passages that a retriever found for each text, with their scores."""
    found = int(arguments.find("n_docs", default=2))
    context = arguments.tokens((arguments.batch * found, arguments.length))
    arguments.values |= {
        "context_input_ids": context,
        "context_attention_mask": torch.ones_like(context),
        "doc_scores": arguments.floats((arguments.batch, found)),
        "decoder_input_ids": arguments.tokens((arguments.batch, arguments.length)),
    }


def one_question(arguments: ForwardArguments) -> None:
    """The position of the question that each text asks."""
    if "question_positions" in arguments.names:
        arguments.values["question_positions"] = torch.ones((arguments.batch, 1), dtype=torch.long)


def options(arguments: ForwardArguments) -> None:
    """One prompt with two questions of two options each."""
    arguments.values = {
        "input_ids": arguments.tokens((1, arguments.length)),
        "marks": torch.tensor([[4, 8]]),
        "num_options": torch.tensor([[2, 2]]),
        "question_type_ids": torch.tensor([[0, 1]]),
    }


def first_token(arguments: ForwardArguments) -> None:
    """The only token of a vocabulary of one."""
    arguments.values["input_ids"] = torch.zeros((arguments.batch, arguments.length), dtype=torch.long)


def boxes_of_tokens(arguments: ForwardArguments) -> None:
    """Labels of the first token of each box, and of those that follow."""
    shape = (arguments.batch, arguments.length)
    arguments.values["bbox_first_token_mask"] = torch.ones(shape, dtype=torch.bool)
    for name in ("initial_token_labels", "subsequent_token_labels"):
        if name in arguments.names:
            arguments.values[name] = arguments.integers(shape, arguments.classes())


def numbers(arguments: ForwardArguments) -> None:
    """Rows of numbers of the width that the model takes."""
    if "inputs" in arguments.names:
        width = int(arguments.find("d_model", default=64))
        arguments.values = {"inputs": arguments.floats((arguments.batch, arguments.length, width))}


def optical_flow(arguments: ForwardArguments) -> None:
    """The patches of two frames."""
    height, width = arguments.find("train_size", default=(16, 16))
    arguments.values = {"inputs": arguments.floats((arguments.batch, 2, 27, height, width))}


def shared_states(arguments: ForwardArguments) -> None:
    """The hidden states of a larger model, and the keys and values of its last layers."""
    text = arguments.config.get_text_config()
    shape = (arguments.batch, arguments.length)
    states = {}
    for kind in dict.fromkeys(text.layer_types):
        is_full = kind == "full_attention"
        width = (is_full and getattr(text, "global_head_dim", None)) or text.head_dim
        heads = (is_full and getattr(text, "num_global_key_value_heads", None)) or text.num_key_value_heads
        keys, values = (arguments.floats((shape[0], heads, shape[1], width)) for _ in range(2))
        states[kind] = (keys, values)
    arguments.values = {
        "inputs_embeds": arguments.floats((*shape, 2 * arguments.config.backbone_hidden_size)),
        "position_ids": torch.arange(shape[1]).expand(shape).clone(),
        "shared_kv_states": states,
    }


def page_patches(arguments: ForwardArguments) -> None:
    """Flat patches of a page, four for each text."""
    if "pixel_values" in arguments.names:
        arguments.values["pixel_values"] = arguments.floats((arguments.batch * 4, int(arguments.config.patch_dim)))


def phrases_of_regions(arguments: ForwardArguments) -> None:
    """Four regions of an image, and the word that each position speaks of."""
    shape = (arguments.batch, arguments.length + 4)
    arguments.values |= {
        "visual_embeds": arguments.floats((arguments.batch, 4, int(arguments.find("visual_embedding_dim")))),
        "visual_attention_mask": torch.ones((arguments.batch, 4), dtype=torch.long),
        "region_to_phrase_position": arguments.integers(shape, arguments.length),
        "labels": arguments.floats((*shape, 4)).softmax(-1),
    }


TEXT_INPUTS: dict[str, Callable[[ForwardArguments], None]] = {
    "BrosSpadeEEForTokenClassification": boxes_of_tokens,
    "DecisionTransformerGPT2Model": first_token,
    "LukeForEntityClassification": entities,
    "LukeForEntityPairClassification": entities,
    "LukeForEntitySpanClassification": entities,
    "PerceiverForOpticalFlow": optical_flow,
    "PerceiverModel": numbers,
    "SplinterForPreTraining": one_question,
    "VisualBertForRegionToPhraseAlignment": phrases_of_regions,
    "gemma4_unified_assistant": shared_states,
    "jev": options,
    "neomme": page_patches,
    "rag": passages,
}
"""The change to the inputs by class or model type."""
