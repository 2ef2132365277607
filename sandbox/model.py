# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Make the sandbox's model: a Llama of 295,488 random weights with a real byte-level BPE tokenizer.

Everything is computed with exact arithmetic from a seed and the text beside this file, so the bytes, and with
them the Hub revision, are the same on every machine. Its answers are gibberish; that they repeat exactly is
what the gates and tests use.

    python3 sandbox/model.py OUT_DIR
"""

from __future__ import annotations

import json
import random
import re
import struct
import sys
from array import array
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

SEED = 20260101
VOCABULARY = 1024
HIDDEN = 64
LAYERS = 4
HEADS = 2  # of 32: one of the head sizes of vLLM's CPU attention; two, so that TP 2 can split them
SHARDS = 4
SPREAD = 0.08  # wide enough that logprobs differ; the default initialisation is nearly uniform
SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CORPUS = Path(__file__).with_name("corpus.txt")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
Pair = tuple[str, str]


def byte_alphabet() -> dict[int, str]:
    """The printable stand-ins that byte-level BPE uses for the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def learn_merges(text: str, count: int) -> list[Pair]:
    """Byte pair encoding: merge the most frequent neighbours (ties in order of text), `count` times."""
    alphabet = byte_alphabet()
    # Approximates the GPT-2 splitting that the tokenizer applies: a word with its leading space, digits, the rest.
    words = Counter(re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+", text))
    split = [(tuple(alphabet[b] for b in word.encode()), n) for word, n in sorted(words.items())]
    merges: list[Pair] = []
    while len(merges) < count:
        pairs: Counter[Pair] = Counter()
        for symbols, n in split:
            for pair in pairwise(symbols):
                pairs[pair] += n
        if not pairs:
            raise ValueError(f"{CORPUS} is too short for {count} merges: it gave {len(merges)}")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        split = [(merge(symbols, best), n) for symbols, n in split]
    return merges


def merge(symbols: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    if pair[0] not in symbols:
        return symbols
    out: list[str] = []
    at = 0
    while at < len(symbols):
        if symbols[at : at + 2] == pair:
            out.append(symbols[at] + symbols[at + 1])
            at += 2
        else:
            out.append(symbols[at])
            at += 1
    return tuple(out)


def tokenizer(text: str) -> dict[str, Any]:
    """tokenizer.json."""
    alphabet = sorted(byte_alphabet().values())
    merges = learn_merges(text, VOCABULARY - len(SPECIAL) - len(alphabet))
    tokens = [*SPECIAL, *alphabet, *(left + right for left, right in merges)]
    bos = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def bfloat16(values: list[float]) -> bytes:
    """The upper half of each float32, rounded to nearest."""
    words = array("I", struct.pack(f"<{len(values)}f", *values))
    if sys.byteorder == "big":
        words.byteswap()
    halves = array("H", (min((word + 0x7FFF + (word >> 16 & 1)) >> 16, 0xFFFF) for word in words))
    if sys.byteorder == "big":
        halves.byteswap()
    return halves.tobytes()


def bell(rng: random.Random, count: int) -> list[float]:
    """Nearly normal numbers from additions alone: no libm, whose last digit differs between machines."""
    draw = rng.random
    return [SPREAD * (sum(draw() for _ in range(12)) - 6.0) for _ in range(count)]


def shapes() -> dict[str, tuple[int, ...]]:
    wide = 2 * HIDDEN
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        found |= {at + f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "o")}
        found |= {at + f"mlp.{name}_proj.weight": (wide, HIDDEN) for name in ("gate", "up")}
        found[at + "mlp.down_proj.weight"] = (HIDDEN, wide)
        found |= {at + f"{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    found["model.norm.weight"] = (HIDDEN,)
    found["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return found


def size(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def shard_names(names: list[str]) -> list[list[str]]:
    """Neighbours together, in shards of about the same size."""
    all_shapes = shapes()
    goal = sum(map(size, all_shapes.values())) / SHARDS
    shards: list[list[str]] = [[]]
    filled = 0
    for name in names:
        if shards[-1] and len(shards) < SHARDS and filled + size(all_shapes[name]) > goal:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size(all_shapes[name])
    return shards


def safetensors(tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(data for _, data in tensors.values())


def make(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)

    def write(name: str, data: Any) -> None:
        (out / name).write_text(json.dumps(data, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")

    numbers = {"bos_token_id": 0, "eos_token_id": [1, 3], "pad_token_id": 2}
    write("tokenizer.json", tokenizer(CORPUS.read_text(encoding="utf-8")))
    write(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|bos|>",
            "eos_token": "<|eos|>",
            "pad_token": "<|pad|>",
            "model_max_length": 2048,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )
    write(
        "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": HIDDEN // HEADS,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            **numbers,
        },
    )
    write("generation_config.json", numbers)

    rng = random.Random(SEED)
    all_shapes = shapes()
    shards = shard_names(list(all_shapes))
    places = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {}
        for name in names:
            shape = all_shapes[name]
            values = [1.0] * size(shape) if len(shape) == 1 else bell(rng, size(shape))
            tensors[name] = (shape, bfloat16(values))
            places[name] = file
        (out / file).write_bytes(safetensors(tensors))
    total = 2 * sum(map(size, all_shapes.values()))
    write("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


if __name__ == "__main__":
    make(Path(sys.argv[1]))
