"""A tiny random model with a tokenizer in a folder, and rows in files, to train with other packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = ("red", "green", "blue", "one", "two", "three", "cat", "dog", "sees", "has", "is", "big", "small", "a", "the")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
LAYERS = 3
ROOT = Path(__file__).resolve().parents[2]


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with this package."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def tokenizer() -> Any:
    """Build a tokenizer that knows a few words."""
    vocabulary = {word: place for place, word in enumerate((*SPECIAL, *WORDS))}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **names)
    made.chat_template = CHAT
    return made


def llama() -> Any:
    """Build a Llama of three layers; its weights are the same each time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config)


def model_folder(path: Path) -> Path:
    llama().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def sentence(place: int, length: int = 5) -> str:
    """Return words that differ by place."""
    return " ".join(WORDS[(place * 7 + 3 * n) % len(WORDS)] for n in range(length))


def rows(count: int = 16) -> list[dict[str, Any]]:
    """Return rows for supervised, preference and online training alike."""
    return [
        {
            "prompt": sentence(n),
            "completion": sentence(n + 1),
            "label": n % 2 == 0,
            "chosen": sentence(n + 1),
            "rejected": sentence(n + 2),
        }
        for n in range(count)
    ]


def data_folder(path: Path, *columns: str) -> Path:
    """Write a folder with a training split of those columns."""
    path.mkdir()
    lines = [json.dumps({name: row[name] for name in columns}) for row in rows()]
    (path / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
