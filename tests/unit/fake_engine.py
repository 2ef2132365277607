"""A small HTTP server that answers as vLLM does, in this process: a stand-in for tests without an engine.

Its model is a function of the token ids: logprobs depend on the last two tokens, so they are right for any
prefix. `weights` stands for the weights: another value, another model. Misbehaviour is switched on by attributes.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

VOCAB = 256
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
        self.reboot_after: int | None = None  # requests
        self.tokenizer_shift = 0
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
        made: list[int] = []
        for _ in range(body["max_tokens"]):
            tail = [0, 0, *ids, *made][-2:]
            values = self.logprobs((tail[0], tail[1]))
            made.append(max(range(VOCAB), key=values.__getitem__))
        text = "".join(chr(97 + token % 26) for token in made)
        text = {"empty": "", "blanks": "\n" * len(made), "special": "", "ends": ""}.get(self.generation, text)
        choice: dict[str, Any] = {
            "text": text,
            "finish_reason": self.end(),
            "token_ids": made if body.get("return_token_ids") else None,
        }
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [-1.0 if self.generation != "empty" else None] * len(made)}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": len(ids), "completion_tokens": len(made)}}

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
