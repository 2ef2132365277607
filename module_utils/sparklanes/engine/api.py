# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Talk to an engine that speaks the OpenAI API as vLLM does, and read what it answers.

The client knows four endings of a request besides an answer (`EngineError.kind`); the
parsers below take the decoded JSON and never touch the network.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

REFUSED = "refused"  # nobody listens there (yet, or any more)
TIMEOUT = "timeout"  # no answer in time: loading, overloaded, or a rank that is dead or stuck
BROKEN = "broken"  # the connection ended in the middle: the engine went away while it worked
HTTP = "http"  # an answer with an error status
NAN = "nan"  # the engine computed NaN, and its JSON encoder refused it
MALFORMED = "malformed"  # an answer that isn't what the API promises

# vLLM answers 400 with this text when a logprob is NaN; /health stays 200 meanwhile.
NAN_TEXT = "not JSON compliant"
# vLLM clamps a logprob of -inf to this.
CLAMPED_LOGPROB = -9999.0
EXCERPT = 300


class EngineError(Exception):
    """A request that brought no usable answer: which kind, the HTTP status if any, and what was said."""

    def __init__(self, kind: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status


def address(api: Mapping[str, Any], elsewhere: str = "127.0.0.1") -> str:
    """http://HOST:PORT of an engine. api: host and port of its rank spec. elsewhere: whom to ask where it listens on every address."""
    host = elsewhere if api["host"] in ("0.0.0.0", "::", "") else str(api["host"])
    return f"http://{f'[{host}]' if ':' in host else host}:{api['port']}"


def excerpt(text: str) -> str:
    """The start of an answer on one line, short enough for a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= EXCERPT else flat[: EXCERPT - 1] + "…"


def error_text(body: str) -> str:
    """What an error answer says: vLLM's `error.message`, FastAPI's `detail`, or the text itself."""
    try:
        data = json.loads(body)
    except ValueError:
        return excerpt(body)
    if isinstance(data, dict):
        error = data.get("error")
        said = error.get("message") if isinstance(error, dict) else error or data.get("detail") or data.get("message")
        if said:
            return excerpt(str(said))
    return excerpt(body)


def classify(status: int, body: str) -> EngineError:
    """The error that an answer with an error status stands for."""
    if NAN_TEXT in body:
        return EngineError(NAN, f"the engine computed NaN: HTTP {status} {error_text(body)}", status)
    return EngineError(HTTP, f"HTTP {status} {error_text(body)}".rstrip(), status)


class Engine:
    """One engine behind `base_url`. A request opens its own connection, follows no redirect and uses no proxy:
    the key stays between us and the address that the inventory names."""

    def __init__(self, base_url: str, api_key: str | None = None, timeout: float = 60.0) -> None:
        try:
            parts = urlsplit(base_url if "//" in base_url else f"//{base_url}", scheme="http")
            host, port = parts.hostname or "", parts.port
            host.encode("idna")  # as the look-up of the name does
            odd = not f"{host}{parts.path}".isascii() or re.search(r"[\x00-\x20\x7f]", base_url)
        except ValueError:
            host, odd = "", True
        if odd or not host or parts.scheme not in ("http", "https"):
            raise ValueError(
                f"base_url {base_url!r} is no http:// or https:// address of an engine, such as http://10.93.1.11:8000"
            )
        self.secure = parts.scheme == "https"
        self.host = host
        self.port = port
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.api_key = api_key or None
        self.timeout = timeout

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port else ""
        return f"http{'s' if self.secure else ''}://{host}{port}{self.prefix}"

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float | None = None) -> str:
        """The body of a 2xx answer; anything else is an EngineError."""
        limit = self.timeout if timeout is None else timeout
        headers = {"Accept": "*/*", "Connection": "close"}
        data = None
        if body is not None:
            data = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        connection: http.client.HTTPConnection
        if self.secure:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=limit, context=ssl.create_default_context())
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=limit)
        with contextlib.closing(connection):
            try:
                connection.request(method, self.prefix + path, body=data, headers=headers)
                response = connection.getresponse()
                text = response.read().decode("utf-8", errors="replace")
            except TimeoutError as error:
                raise EngineError(TIMEOUT, f"no answer from {self}{path} in {limit:g} s") from error
            except (ConnectionRefusedError, socket.gaierror) as error:
                raise EngineError(REFUSED, f"nothing answers at {self}: {error}") from error
            except (http.client.HTTPException, OSError) as error:
                why = str(error) or type(error).__name__
                raise EngineError(BROKEN, f"the connection to {self}{path} ended without an answer: {why}") from error
        if not 200 <= response.status < 300:
            raise classify(response.status, text)
        return text

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float | None = None) -> Any:
        text = self.request(method, path, body, timeout)
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineError(MALFORMED, f"{self}{path} answered no JSON: {excerpt(text)}") from error

    def get(self, path: str, timeout: float | None = None) -> Any:
        return self.json("GET", path, timeout=timeout)

    def post(self, path: str, body: Mapping[str, Any], timeout: float | None = None) -> Any:
        return self.json("POST", path, body, timeout)

    def health(self) -> None:
        """Returns where /health says 200. That alone proves little: it stays 200 while a worker is dead."""
        self.request("GET", "/health")

    def version(self) -> str:
        data = self.get("/version")
        return str(data.get("version", "")) if isinstance(data, dict) else ""

    def models(self) -> list[Model]:
        return parse_models(self.get("/v1/models"))

    def metrics(self) -> str:
        return self.request("GET", "/metrics")

    def tokenize(self, model: str, text: str, add_special_tokens: bool = True) -> list[int]:
        body = {"model": model, "prompt": text, "add_special_tokens": add_special_tokens}
        return parse_tokens(self.post("/tokenize", body))

    def tokenize_chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any] | None = None
    ) -> list[int]:
        body: dict[str, Any] = {"model": model, "messages": list(messages), "add_generation_prompt": True}
        if template:
            body["chat_template_kwargs"] = dict(template)
        return parse_tokens(self.post("/tokenize", body))

    def score(self, model: str, token_ids: Sequence[int], timeout: float | None = None) -> Scores:
        """The logprob and rank of each prompt token: the cheapest form, only the actual token (72 bytes each)."""
        body = {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": 1,  # 0 is refused without echo
            "temperature": 0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
        }
        return parse_scores(self.post("/v1/completions", body, timeout), token_ids)

    def generate(self, model: str, token_ids: Sequence[int], max_tokens: int, timeout: float | None = None) -> list[int]:
        """The ids of a greedy completion: ids, because decoded text doesn't always lead back to them."""
        body = {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }
        return parse_completion(self.post("/v1/completions", body, timeout)).token_ids


@dataclass(frozen=True)
class Model:
    id: str
    max_model_len: int | None = None


@dataclass(frozen=True)
class Generation:
    """One answered generation, of either endpoint. `text` is what a user sees, `reasoning` what precedes it."""

    text: str
    reasoning: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    token_ids: list[int] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        return all(value is not None and math.isfinite(value) for value in self.logprobs)


@dataclass(frozen=True)
class Scores:
    """The logprob and rank of every token of a prompt; the first has neither."""

    logprobs: list[float | None]
    ranks: list[int | None]
    texts: dict[int, str]
    cached_tokens: int | None
    prompt_token_ids: list[int]


def _first(data: Any, what: str) -> dict[str, Any]:
    try:
        choice = data["choices"][0]
    except (KeyError, IndexError, TypeError):
        choice = None
    if not isinstance(choice, dict):
        raise EngineError(MALFORMED, f"the {what} holds no choice: {excerpt(json.dumps(data))}")
    return choice


def _usage(data: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    usage = data.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens")


def parse_models(data: Any) -> list[Model]:
    """The models of /v1/models."""
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise EngineError(MALFORMED, f"/v1/models holds no list: {excerpt(json.dumps(data))}")
    return [Model(str(entry["id"]), entry.get("max_model_len")) for entry in entries if "id" in entry]


def parse_tokens(data: Any) -> list[int]:
    """The ids of a /tokenize answer."""
    tokens = data.get("tokens") if isinstance(data, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise EngineError(MALFORMED, f"/tokenize answered no token ids: {excerpt(json.dumps(data))}")
    return tokens


def parse_completion(data: Any) -> Generation:
    """A /v1/completions answer."""
    choice = _first(data, "completion")
    prompt, completion, cached = _usage(data)
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
    return Generation(
        text=choice.get("text") or "",
        reasoning="",
        finish_reason=choice.get("finish_reason") or "",
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        token_ids=list(choice.get("token_ids") or []),
        logprobs=list(logprobs),
    )


def parse_chat(data: Any) -> Generation:
    """A /v1/chat/completions answer. vLLM says `reasoning`, older builds and other engines `reasoning_content`."""
    choice = _first(data, "chat completion")
    message = choice.get("message") or {}
    prompt, completion, cached = _usage(data)
    entries = (choice.get("logprobs") or {}).get("content") or []
    return Generation(
        text=message.get("content") or "",
        reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
        finish_reason=choice.get("finish_reason") or "",
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        token_ids=list(choice.get("token_ids") or []),
        tool_calls=list(message.get("tool_calls") or []),
        logprobs=[entry.get("logprob") for entry in entries],
    )


def parse_scores(data: Any, token_ids: Sequence[int]) -> Scores:
    """The logprobs of the prompt `token_ids` in a completion answer.

    The first entry is null by definition. A null further on, or an entry without the token that was
    sent, is kept as None: the gate's rule about finite values judges it.
    """
    choice = _first(data, "completion")
    entries = choice.get("prompt_logprobs")
    if entries is None:
        entries = data.get("prompt_logprobs")
    if not isinstance(entries, list):
        raise EngineError(MALFORMED, "the completion holds no prompt_logprobs")
    if len(entries) != len(token_ids):
        raise EngineError(MALFORMED, f"{len(entries)} prompt_logprobs for {len(token_ids)} tokens sent")
    logprobs: list[float | None] = []
    ranks: list[int | None] = []
    texts: dict[int, str] = {}
    for token, entry in zip(token_ids, entries, strict=True):
        own = entry.get(str(token)) if isinstance(entry, dict) else None
        own = own if isinstance(own, dict) else {}
        logprobs.append(own.get("logprob"))
        ranks.append(own.get("rank"))
        if "decoded_token" in own:
            texts[token] = str(own["decoded_token"])
    return Scores(logprobs, ranks, texts, _usage(data)[2], list(choice.get("prompt_token_ids") or []))
