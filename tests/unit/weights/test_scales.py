# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Quantization scales that can't be, by their bits."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.sparklanes.weights import model as weights_model
from ansible.module_utils.sparklanes.weights import safetensors
from ansible.module_utils.sparklanes.weights import scales as weights_scales
from ansible.module_utils.sparklanes.weights import standing as weights_standing
from ansible.module_utils.sparklanes.weights.scales import Scale, judge
from checkpoints import checkpoint, shard
from hypothesis import given
from hypothesis import strategies as st

GOOD = {
    "F32": struct.pack("<4f", 0.01, 0.02, 1.0, 1e-30),
    "F16": struct.pack("<4e", 0.01, 0.02, 1.0, 6e-8),
    "BF16": bytes.fromhex("803c") + bytes.fromhex("a03c") * 3,
    "F8_E4M3": bytes([0x38, 0x39, 0x01, 0x7E]),
    "F8_E5M2": bytes([0x38, 0x39, 0x01]),
    "F8_E8M0": bytes([0x70, 0x71, 0x00]),
}


@pytest.mark.parametrize("dtype", GOOD)
def test_what_is_right_passes(dtype: str) -> None:
    assert judge(dtype, GOOD[dtype]) == ""
    assert judge(dtype, b"") == ""


@pytest.mark.parametrize(
    ("dtype", "bad", "why"),
    [
        ("F32", struct.pack("<2f", 0.5, 0.0), "1 of 2 values are zero"),
        ("F32", struct.pack("<2f", 0.5, -0.0), "1 of 2 values are zero"),
        ("F32", struct.pack("<2f", 0.5, float("nan")), "not a finite number"),
        ("F32", struct.pack("<2f", 0.5, float("inf")), "not a finite number"),
        ("F32", struct.pack("<2f", 0.5, -0.5), "a negative value"),
        ("BF16", bytes(4), "2 of 2 values are zero"),
        ("BF16", bytes.fromhex("807f"), "not a finite number"),
        ("BF16", bytes.fromhex("803c") * 64, "64 values that are all the same"),
        ("BF16", bytes.fromhex("803c") * 63, ""),
        ("F16", struct.pack("<2e", 1, float("inf")), "not a finite number"),
        ("F8_E4M3", bytes([0x38, 0x7F]), "not a finite number"),
        ("F8_E4M3", bytes([0x38, 0x80]), "1 of 2 values are zero"),
        ("F8_E4M3", bytes([0x38]) * 4096, "4096 values that are all the same"),
        ("F8_E8M0", bytes([0xFF, 0x70]), "not a finite number"),
        ("F8_E8M0", bytes([0x70]) * 64, "64 values that are all the same"),
    ],
)
def test_what_cannot_be_is_told(dtype: str, bad: bytes, why: str) -> None:
    assert judge(dtype, bad) == why


@given(st.sampled_from(sorted(weights_scales.BITS)), st.binary(max_size=300))
def test_any_bytes_are_judged(dtype: str, data: bytes) -> None:
    assert isinstance(judge(dtype, data), str)


def test_a_sample_is_the_same_each_time() -> None:
    many = [Scale("f", str(number), "F32", 0, 4) for number in range(500)]
    assert weights_scales.choose(many, 64) == weights_scales.choose(many, 64)
    assert len(weights_scales.choose(many, 64)) == 64
    assert weights_scales.choose(many, 64, seed=1) != weights_scales.choose(many, 64)
    assert weights_scales.choose(many[:3], 64) == many[:3]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("layers.1.mlp.down_proj.weight_scale", True),
        ("layers.1.mlp.down_proj.weight_scale_inv", True),
        ("layers.1.mlp.down_proj.weight_scale_2", True),
        ("layers.1.mlp.down_proj.scales", True),
        ("layers.1.mlp.down_proj.input_scale", False),
        ("layers.1.self_attn.k_scale", False),
        ("logit_scale", False),
        ("rescales", False),
    ],
)
def test_which_tensors_are_scales_of_weights(name: str, is_one: bool) -> None:
    assert bool(weights_scales.NAME.search(name)) is is_one


def standing(
    folder: Path, scale: tuple[str, bytes], name: str = "a.weight_scale", weights_only: bool = False, **expect: Any
) -> list[str]:
    """The failed checks of a checkpoint with one more shard, that holds this scale tensor."""
    checkpoint(folder, shards=1)
    (folder / "model.safetensors.index.json").unlink()
    dtype, data = scale
    width = safetensors.BITS[dtype] // 8
    tensors = {"a.weight": ("U8", [7], b"padding"), name: (dtype, [len(data) // width], data)}
    (folder / "scales.safetensors").write_bytes(shard(tensors))
    model = weights_model.Model.from_dict({"name": "model", "path": str(folder), "expect": expect})
    account = safetensors.scan(folder)
    assert account.problems == []
    return [f"{check.id} {check.found}" for check in weights_standing.scale_checks(model, "s1", account, weights_only)]


@pytest.mark.parametrize("name", ["a.input_scale", "a.input_global_scale"])
def test_a_scale_of_activations_is_never_zero_where_activations_are_quantized(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    (found,) = standing(folder, ("F32", bytes(4)), name)
    assert found.endswith(f"{name}: 1 of 1 values are zero")
    assert standing(folder, ("F32", bytes(4)), name, weights_only=True) == []
    assert standing(folder, ("F32", struct.pack("<f", 1.0) * 64), name) == [], "1 is what nobody calibrated"
    assert weights_standing.weights_alone({"quantization_config": {"quant_algo": "W4A16_NVFP4"}})
    assert not weights_standing.weights_alone({"quantization_config": {"quant_algo": "NVFP4"}})
    assert not weights_standing.weights_alone({})


def test_the_bytes_of_the_tensor_itself_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    good = b"".join(struct.pack("<f", 1 + number) for number in range(5000))
    assert standing(folder, ("F32", good)) == []
    found = f"WEIGHTS.SCALE {folder}/scales.safetensors: a.weight_scale: "
    assert standing(folder, ("F32", bytes(20000))) == [found + "1024 of 1024 values are zero"]
    assert standing(folder, ("F32", bytes(20000)), scale_samples=0) == []


def test_names_and_family_and_bad_hashes(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    account = safetensors.scan(folder)

    def guards(**data: Any) -> list[str]:
        model = weights_model.Model.from_dict({"name": "model", "path": str(folder), **data})
        records = {"config.json": weights_model.Record(1, 1, "92ae6f37" + "0" * 56)}
        config = {"architectures": ["Tiny"], "quantization_config": {"quant_method": "modelopt"}}
        checks = weights_standing.account_checks(model, "s1", account) + weights_standing.digest_checks(model, "s1", records)
        return [check.found.removeprefix(str(folder)) for check in checks + weights_standing.family_checks(model, "s1", config)]

    assert guards(expect={"names": {r"layers\.1\.": 4, "nothing": 0}}) == []
    assert guards(expect={"names": {r"layers\.1\.": 5}}) == [r": 4 tensors like layers\.1\."]
    assert guards(expect={"family": {"architectures": "Tiny", "quantization_config.quant_method": "modelopt"}}) == []
    assert guards(expect={"family": {"model_type": "glm"}}) == ["/config.json: model_type is not there"]
    assert guards(bad_sha256=["92ae6f37"]) == ["/config.json: sha256 92ae6f3700000000…, which the lane knows as bad"]
    with pytest.raises(weights_model.StagingError, match="must be 8 to 64 hex digits"):
        guards(bad_sha256=["92ae"])
    with pytest.raises(weights_model.StagingError, match="no pattern"):
        guards(expect={"names": {"(": 1}})
