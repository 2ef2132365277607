"""A small HTTP server that answers as vLLM does, in this process: a stand-in for tests without an engine.

Its model is a function of the token ids: logprobs depend on the last two tokens, so they are right for any
prefix. `weights` stands for the weights: another value, another model. Misbehaviour is switched on by attributes.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

VOCAB = 256
BLOCK = 16
NAN_ANSWER = {"error": {"message": "Out of range float values are not JSON compliant", "type": "BadRequestError", "code": 400}}


class FakeEngine:
    """`with FakeEngine() as engine: … engine.url`."""

    def __init__(self, max_model_len: int = 512, weights: float = 1.0) -> None:
        self.max_model_len = max_model_len
        self.weights = weights
        self.key: str | None = None
        self.nan_in: set[int] = set()  # lengths of prompts that give NaN
        self.generation: str = "works"  # works, hangs, dies, empty, nan, blanks, swallowed, special, ends
        self.healthy = True
        self.cached = 0
        self.boot = 1000.0
        self.generated = 0  # tokens, since the boot
        self.reboot_after: int | None = None  # requests
        self.tokenizer_shift = 0
        # Of a decoded logprob, times √(1 − p): by tokens of the prompt, position in the answer, tokens from the cache, and requests at work.
        self.decode_noise: Callable[[int, int, int, int], float] = lambda prompt, position, hit, running: 0.0
        self.sampler_slips = 0  # at each such position of an answer at temperature 0
        self.prefix_cache = True
        self.caches: dict[str, list[list[int]]] = {}
        self.running = 0
        self.batch = 1  # so many requests are waited for, up to 2 s
        self.at_work = threading.Condition()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.finished = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self, {})

            def do_POST(self) -> None:
                outer.answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> FakeEngine:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    # --- the model -----------------------------------------------------------------------------------

    def logit(self, context: tuple[int, int], token: int) -> float:
        a, b = context
        return self.weights * 3.0 * math.sin(a * 12.9898 + b * 78.233 + token * 37.719)

    def logprobs(self, context: tuple[int, int]) -> list[float]:
        logits = [self.logit(context, token) for token in range(VOCAB)]
        norm = math.log(sum(math.exp(value) for value in logits))
        return [value - norm for value in logits]

    def tokens(self, text: str) -> list[int]:
        return [(byte + self.tokenizer_shift) % VOCAB for byte in text.encode()]

    # --- the API -------------------------------------------------------------------------------------

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        path = handler.path
        self.requests.append((path, body))
        status, data = 200, None
        if path == "/health":
            status = 200 if self.healthy else 503
        elif path == "/metrics":
            data = self.metrics()
        elif path.startswith("/v1") and self.key and handler.headers.get("Authorization") != f"Bearer {self.key}":
            status, data = 401, {"error": "Unauthorized"}
        elif path == "/version":
            data = {"version": "0.32.0"}
        elif path == "/v1/models":
            data = {"object": "list", "data": [{"id": "tiny", "max_model_len": self.max_model_len}]}
        elif path == "/tokenize":
            text = body.get("prompt")
            if text is None:
                text = "".join(message["content"] for message in body["messages"]) + "\n"
            data = {"tokens": self.tokens(text)}
        elif path == "/v1/completions":
            status, data = self.completion(body)
        elif path == "/v1/chat/completions":
            status, data = self.chat(body)
        else:
            status, data = 404, {"detail": "Not Found"}
        if data is None and status == 0:
            handler.connection.close()
            return
        content = (data if isinstance(data, str) else json.dumps(data) if data is not None else "").encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        with contextlib.suppress(BrokenPipeError):  # a client that no longer waits
            handler.wfile.write(content)

    def metrics(self) -> str:
        boot = self.boot
        if self.reboot_after is not None and self.finished >= self.reboot_after:
            boot += 1
        return (
            f"process_start_time_seconds {boot}\n"
            f'vllm:request_success_total{{finished_reason="length"}} {self.finished}\n'
            f"vllm:prompt_tokens_cached_total {self.cached}\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        )

    def completion(self, body: dict[str, Any]) -> tuple[int, Any]:
        prompt = body["prompt"]
        ids = self.tokens(prompt) if isinstance(prompt, str) else prompt
        if len(ids) >= self.max_model_len:
            return 400, {"error": {"message": f"prompt of {len(ids)} tokens is too long", "code": 400}}
        if body["max_tokens"] < 1:
            return 400, {"error": {"message": "max_tokens must be at least 1, got 0.", "code": 400}}
        broken = self.misbehave()
        if broken:
            return broken
        self.finished += 1
        if "prompt_logprobs" in body:
            if len(ids) in self.nan_in:
                return 400, NAN_ANSWER
            entries: list[Any] = [None]
            for k in range(1, len(ids)):
                values = self.logprobs((ids[k - 2] if k > 1 else 0, ids[k - 1]))
                own = values[ids[k]]
                rank = 1 + sum(value > own for value in values)
                entries.append({str(ids[k]): {"logprob": own, "rank": rank, "decoded_token": chr(ids[k])}})
            choice = {"text": "x", "finish_reason": "length", "prompt_logprobs": entries, "prompt_token_ids": ids}
            return 200, {"choices": [choice], "usage": {"prompt_tokens": len(ids), "completion_tokens": 1}}
        with self.at_work:
            self.running += 1
            self.at_work.notify_all()
            # As a scheduler batches them: who comes together is at work together.
            self.at_work.wait_for(lambda: self.running >= self.batch, 2)
        hit = self.hit(ids, body)
        made, known, tops = self.generate(ids, body, hit)
        with self.at_work:
            self.running -= 1
            self.cached += hit
            # The last token of an answer was never read by the engine.
            self.caches.setdefault(str(body.get("cache_salt")), []).append([*ids, *made[:-1]])
        text = "".join(chr(97 + token % 26) for token in made)
        text = {"empty": "", "blanks": "\n" * len(made), "special": "", "ends": ""}.get(self.generation, text)
        choice: dict[str, Any] = {
            "text": text,
            "finish_reason": self.end(),
            "token_ids": made if body.get("return_token_ids") else None,
        }
        if "logprobs" in body:
            choice["logprobs"] = {
                "token_logprobs": known if self.generation != "empty" else [None] * len(made),
                "top_logprobs": tops,
            }
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(made)}
        return 200, {"choices": [choice], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": hit}}}

    def generate(self, ids: list[int], body: dict[str, Any], hit: int) -> tuple[list[int], list[float], list[dict[str, float]]]:
        """Ids, their logprobs with `decode_noise`, and what was the most likely at each position."""
        draw = random.Random(f"{body.get('seed')} {len(ids)} {hit}")
        made: list[int] = []
        known: list[float] = []
        tops: list[dict[str, float]] = []
        for position in range(body["max_tokens"]):
            tail = [0, 0, *ids[-2:], *made[-2:]][-2:]
            values = self.logprobs((tail[0], tail[1]))
            best = token = max(range(VOCAB), key=values.__getitem__)
            if body.get("temperature"):
                token = draw.choices(range(VOCAB), [math.exp(value) for value in values])[0]
            elif self.sampler_slips and position % self.sampler_slips == 0:
                token = (best + 1) % VOCAB
            noise = self.decode_noise(len(ids), position, hit, self.running) * math.sqrt(1 - math.exp(values[token]))
            made.append(token)
            known.append(values[token] + draw.gauss(0, 1) * noise)
            tops.append({f"token_id:{token}": known[-1], f"token_id:{best}": max(values[best], known[-1])})
        self.generated += len(made)
        return made, known, tops

    def hit(self, ids: list[int], body: dict[str, Any]) -> int:
        """Tokens of whole blocks that a sequence of this salt begins with, too."""
        longest = 0
        for before in self.caches.get(str(body.get("cache_salt")), []):
            same = next((at for at, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b), min(len(ids), len(before)))
            longest = max(longest, min(same, len(ids) - 1) // BLOCK * BLOCK)
        return longest if self.prefix_cache and "cache_salt" in body else 0

    def chat(self, body: dict[str, Any]) -> tuple[int, Any]:
        broken = self.misbehave()
        if broken:
            return broken
        self.finished += 1
        content = {"empty": "", "blanks": "\n" * 16, "swallowed": "", "special": "", "ends": ""}.get(
            self.generation, "It warns ships."
        )
        message = {"role": "assistant", "content": content, "reasoning": None}
        usage = {"prompt_tokens": 9, "completion_tokens": body["max_tokens"]}
        return 200, {"choices": [{"message": message, "finish_reason": self.end()}], "usage": usage}

    def end(self) -> str:
        return "stop" if self.generation == "ends" else "length"

    def misbehave(self) -> tuple[int, Any] | None:
        if self.generation == "hangs":
            time.sleep(1.0)
            return 500, {"error": {"message": "RPC call to execute_model timed out."}}
        if self.generation == "dies":
            return 500, {"error": {"message": "EngineCore encountered an issue."}}
        if self.generation == "drops":
            return 0, None
        if self.generation == "nan":
            return 400, NAN_ANSWER
        return None
