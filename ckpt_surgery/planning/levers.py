"""Changes to a training beside checkpointing, and the words for them. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

RANK = 16
"""The rank of the adapters that are tried."""


class StateLever(StrEnum):
    """A change that lowers the bytes that live from step to step."""

    LORA = "LoRA"
    LORA_4BIT = "LoRA on 4 bits"
    FOUR_BITS = "4 bits"
    ADAM_8BIT = "8-bit Adam"
    FSDP = "FSDP"


_OPTIONS = {
    StateLever.LORA: f"--lora {RANK}",
    StateLever.LORA_4BIT: f"--lora {RANK} --load-in-4bit",
    StateLever.FOUR_BITS: "--load-in-4bit",
    StateLever.ADAM_8BIT: "--optimizer adamw-8bit",
    StateLever.FSDP: "--ranks {cards} --fsdp",
}
_IN_SCRIPTS = {
    StateLever.LORA: f'LoraConfig(r={RANK}, target_modules="all-linear")',
    StateLever.LORA_4BIT: f'LoraConfig(r={RANK}, target_modules="all-linear"), BitsAndBytesConfig(load_in_4bit=True)',
    StateLever.FOUR_BITS: "BitsAndBytesConfig(load_in_4bit=True)",
    StateLever.ADAM_8BIT: 'optim="adamw_8bit"',
    StateLever.FSDP: "accelerate launch --use_fsdp --fsdp_version 2 --num_processes {cards}",
}


@dataclass(frozen=True, slots=True)
class LeverPeak:
    """A lever, the number of `cards` it divides a model among, and a step's peak with it in bytes.

    The model is already trained by `ranks` ranks, undivided.
    """

    lever: StateLever
    cards: int
    peak_bytes: int
    ranks: int = 1

    @property
    def name(self) -> str:
        """The lever in words, such as "FSDP over 4 cards"."""
        if self.lever is not StateLever.FSDP:
            return str(self.lever)
        if self.ranks == 1:
            return f"FSDP over {self.cards} cards"
        there = f"the {self.ranks} cards that train it now"
        return (
            f"FSDP over {there}" if self.cards == self.ranks else f"FSDP over {self.cards} cards in place of {there}"
        )

    @property
    def options(self) -> str:
        """The lever as options of `plan` and `explain`."""
        return _OPTIONS[self.lever].format(cards=self.cards)

    @property
    def in_scripts(self) -> str:
        """The lever as code of a training script, or as the command that starts it."""
        return _IN_SCRIPTS[self.lever].format(cards=self.cards)


def useful_levers(tried: Iterable[LeverPeak], peak_bytes: int, room: int) -> tuple[LeverPeak, ...]:
    """Return the levers that lower a peak, the most effective first, with the fewest cards that are enough."""
    useful = [each for each in tried if each.peak_bytes < peak_bytes]
    divided = [each for each in useful if each.lever is StateLever.FSDP]
    cards = next((each for each in divided if each.peak_bytes <= room), divided[-1] if divided else None)
    return tuple(
        sorted(
            (each for each in useful if each.lever is not StateLever.FSDP or each is cards),
            key=lambda each: each.peak_bytes,
        )
    )
