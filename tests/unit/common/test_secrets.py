# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One answer to what is a secret: names, looks, and texts without secrets."""

from __future__ import annotations

import json
import time

import pytest
from ansible.module_utils.sparklanes.common import secrets
from ansible.module_utils.sparklanes.engine.flags import DERIVED_FLAGS

SECRET = """
    AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN OPENAI_KEY OPENAI_API_KEY S3_ACCESS_KEY VLLM_API_KEY HF_TOKEN hf_token hfToken HFTOKEN HF_TOKEN_2
    HUGGING_FACE_HUB_TOKEN WANDB_API_KEY API_KEYS apiKey APIKey APIKEY openai_apikey accessToken secretAccessKey DB_PASSWD db_passwd
    MYSQL_PWD PGPASSWORD DB_PASS SMTP_PASS RSYNC_PASSWORD password PASSWORD PASSWORDS SECRET CLIENT_SECRET CLIENT_SECRETS SECRET_KEY_BASE TOKEN KEY
    key API_TOKENS AUTH_TOKENS TS_AUTHKEY GPG_PASSPHRASE GIT_CREDENTIALS NPM_AUTH BASIC_AUTH AUTHORIZATION BEARER_TOKEN GITHUB_PAT GH_PAT MY_PAT
    WANDB_APIKEY MY_PASS ansible_become_pass ansible_ssh_pass MY_KEY DEPLOY_KEY AZURE_CREDENTIAL
    AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_KEY SSH_PRIVATE_KEY SIGNING_KEY ENCRYPTION_KEY VLLM_API_KEY_OLD LMCACHE_REDIS_PASSWORD
    --api-key --hf-token --api_key --ssl-keyfile-password --some-auth-token --redis.password X-API-Key
"""
NONE = """
    TOKENIZERS_PARALLELISM TOKENIZER KEYBOARD MONKEY MONKEYPATCH TURKEY MAX_TOKENS MIN_TOKENS NUM_TOKENS COPY_TOKENS BATCHED_TOKENS MAX_TOKEN
    MAX_NEW_TOKEN EOS_TOKEN PAD_TOKEN BOS_TOKEN IMAGE_TOKEN KEYS KEYSTONE PUBLIC_KEY PRIMARY_KEY CACHE_KEY PARTITION_KEY SORT_KEY PWD OLDPWD PATH
    HF_HUB_DISABLE_IMPLICIT_TOKEN HF_TOKEN_PATH PASSWORD_FILE SECRETS_DIR API_KEY_HEADER TOKEN_URL TOKEN_LIMIT KEY_PATH SECRET_NAME
    GOOGLE_APPLICATION_CREDENTIALS PASS BYPASS COMPASS TWO_PASS FUSION_PASS PASSED PAT COMPAT GLIBC_COMPAT VLLM_POST_GRAD_PASS PASS_MANAGER AUTHOR AUTH ENABLE_AUTH SECRETARY PATTERN PATH_PATTERN
    --max-num-batched-tokens --max-num-scheduled-tokens --tokenizer --tokenizer-mode --long-prefill-token-threshold --ssl-keyfile
    --return-tokens-as-token-ids --enable-prompt-tokens-details --spec-tokens --tokens-only --dbo-decode-token-threshold --port
    NCCL_IB_HCA NCCL_DEBUG VLLM_HOST_IP num_speculative_tokens kv_bytes_per_token max_new_tokens
"""


@pytest.mark.parametrize("name", SECRET.split())
def test_the_name_of_a_secret(name: str) -> None:
    assert secrets.secret_name(name)
    assert secrets.hidden(name, "x") == secrets.HIDDEN


@pytest.mark.parametrize("name", [*NONE.split(), "", "--", "_"])
def test_a_name_that_only_sounds_like_one(name: str) -> None:
    assert not secrets.secret_name(name)
    assert secrets.hidden(name, "x") == "x"


def test_every_flag_that_is_refused_as_a_secret_is_one_by_name() -> None:
    told = [flag for flag, why in DERIVED_FLAGS.items() if why.startswith("a secret")]
    assert told
    assert all(secrets.secret_name(flag) for flag in told)


LOOKS = [
    "hf_" + "a" * 30,
    "Bearer sk-proj-" + "a" * 30,
    "ghp_" + "a" * 36,
    "github_pat_" + "a" * 40,
    "glpat-" + "a" * 20,
    "nvapi-" + "a" * 60,
    "xoxb-1234567890-abc",
    "AIza" + "a" * 35,
    "gsk_" + "a" * 50,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-_",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "AKIA" + "A1" * 8,
    "ASIA" + "A1" * 8,
    "dckr_pat_" + "a" * 27,
    "pypi-" + "a" * 60,
    "npm_" + "a" * 36,
    "--index-url https://user:p@ss@host/simple",
    "https://" + "0123456789abcdef" * 2 + "@host/simple",
    "redis://user:pw@host:6379/0",
    "redis://:pw@host",
]


@pytest.mark.parametrize("text", LOOKS)
def test_what_looks_like_a_secret_is_one_under_any_name(text: str) -> None:
    assert secrets.secret_value(text)
    assert not secrets.secret_value(secrets.blanked(text))
    assert secrets.secret_value(secrets.hidden("HARMLESS", text)) is False


@pytest.mark.parametrize(
    "text",
    [
        "hf_home",
        "task-force-for-the-long-name-of-a-model",
        "sk-short",
        "http://proxy:3128/",
        "http://[::1]:80/x@y",
        "http://host:80?mail=x@y",
        "ssh://git@github.com/a/b",
        "rsync://sparklanes@10.0.0.1:18730/m",
        "AKIAN",
        "tcp://10.0.0.1:29500",
        "registry.example.com:5000/vllm@sha256:" + "0" * 64,
        "-----BEGIN CERTIFICATE-----",
        "eyJ",
        "",
    ],
)
def test_what_does_not_look_like_one(text: str) -> None:
    assert not secrets.secret_value(text)
    assert secrets.blanked(text) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("export HF_TOKEN='SECRET x'; vllm serve /m --port 80", "export HF_TOKEN='(hidden)'; vllm serve /m --port 80"),
        ("vllm serve /m --enable-x --api-key SECRET --port 80", "vllm serve /m --enable-x --api-key (hidden) --port 80"),
        ("--api-key=SECRET --seed 1", "--api-key=(hidden) --seed 1"),
        ("--api-key --seed 1", "--api-key --seed 1"),
        ('{"kv": {"api_key": "SECRET", "max_tokens": 5}}', '{"kv": {"api_key": "(hidden)", "max_tokens": 5}}'),
        ("{'api_key': ['SECRET'], 'seed': 1}", """{'api_key': ["(hidden)"], 'seed': 1}"""),
        ("Authorization: Bearer SECRET", "Authorization: (hidden)"),
        ("X-API-Key: SECRET", "X-API-Key: (hidden)"),
        ("a=1 aws_secret_access_key=SECRET", "a=1 aws_secret_access_key=(hidden)"),
        ("redis://user:SECRET@host/0", "redis://(hidden)@host/0"),
        ("redis://user:SEC@RET@host/0", "redis://(hidden)@host/0"),
        ("MAX_TOKENS=5 TOKENIZERS_PARALLELISM=false", "MAX_TOKENS=5 TOKENIZERS_PARALLELISM=false"),
    ],
)
def test_texts_keep_all_but_their_secrets(text: str, left: str) -> None:
    assert secrets.blanked(text) == left


def test_json_stays_json() -> None:
    text = json.dumps({"a": {"token": "x", "limit": 3, "api_keys": ["x", "y"]}, "b": ["y"]})
    assert json.loads(secrets.blanked(text)) == {"a": {"token": "(hidden)", "limit": 3, "api_keys": ["(hidden)"]}, "b": ["y"]}


def test_a_long_text_is_read_in_no_time() -> None:
    began = time.monotonic()
    for text in ("a" * 200_000, "a-" * 100_000, "--a " * 50_000, "a='" * 50_000, "eyJa" * 50_000, "://" * 60_000):
        secrets.blanked(text)
    assert time.monotonic() - began < 5


def test_words_of_a_command() -> None:
    words = ["/models/m", "--api-key", "SECRET", "SECRET", "--seed", "1", "--hf-token=SECRET", "--max-num-batched-tokens", "8"]
    assert list(secrets.blanked_words(words)) == [
        *("/models/m", "--api-key", "(hidden)", "(hidden)", "--seed", "1", "--hf-token=(hidden)", "--max-num-batched-tokens", "8")
    ]
    assert list(secrets.secret_flags(words)) == ["--api-key", "--hf-token"]
    assert list(secrets.secret_flags(["--api-key", "--seed", "1"])) == []


def test_variables_of_a_container() -> None:
    env = ["HF_HOME=/x", "MINE=SECRET", "hf_token=SECRET", "URL=redis://:SECRET@h", "LONE"]
    assert secrets.blanked_env(env, ["MINE"]) == [
        "HF_HOME=/x",
        "MINE=(hidden)",
        "hf_token=(hidden)",
        "URL=redis://(hidden)@h",
        "LONE",
    ]
    assert secrets.blanked_env(env, None) == [*(f"{name}=(hidden)" for name in ("HF_HOME", "MINE", "hf_token", "URL")), "LONE"]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"kv": {"api_key": "x"}}, ["--f.kv.api_key"]),
        ([{"token": "x"}], ["--f.token"]),
        ('{"password": "x"}', ["--f"]),
        ({"token": None, "max_tokens": 5, "secret": False, "token_type": "a"}, []),
        ("token", []),
    ],
)
def test_secrets_inside_of_a_value(data: object, where: list[str]) -> None:
    assert list(secrets.secret_keys(data, "--f")) == where
