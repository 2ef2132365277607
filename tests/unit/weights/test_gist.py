"""What a model is, in a page: what traps ask of its config.json and its tensors."""

from __future__ import annotations

import json
from typing import Any

from ansible.module_utils.sparklanes.weights import gist


def test_thousands_of_names_are_some_with_a_star_for_each_number() -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.up_proj.input_scale" for layer in range(40) for expert in range(30)]
    assert gist.shapes([*names, "lm_head.weight", "layers1.x"]) == [
        "layers1.x",
        "lm_head.weight",
        "model.layers.*.mlp.experts.*.up_proj.input_scale",
    ]
    ignored = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(45)]
    told = gist.gist({"quantization_config": {"ignore": ignored}}, None, names)
    assert told["config"]["quantization_config"]["ignore"] == ["model.layers.*.self_attn.q_proj"]
    assert told["tensors"] == ["model.layers.*.mlp.experts.*.up_proj.input_scale"]


def test_the_quantizers_own_file_counts_where_config_json_says_nothing() -> None:
    other = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    assert gist.gist({}, other, [])["config"]["quantization_config"] == {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    told = {"quantization_config": {"quant_algo": "W4A16_NVFP4"}}
    assert gist.gist(told, other, [])["config"] == told
    for odd in (None, [], "x", {"quantization": 1}):
        assert gist.gist(odd, odd, []) == {"config": {} if not isinstance(odd, dict) else odd, "tensors": []}


def test_somebody_elses_file_never_becomes_large() -> None:
    deep: Any = "x"
    for _ in range(50):
        deep = {"k": [deep]}
    evil = {"a": "x" * 10**6, "deep": deep, "many": list(range(10**5)), **{f"k{n}": n for n in range(10**4)}, "set": {1, 2}}
    told = gist.gist(evil, None, (f"tensor{chr(97 + n % 26)}{n}x" for n in range(10**4)))
    assert len(json.dumps(told)) < 200_000
