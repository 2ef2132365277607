#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Ask a running engine for a real generation."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: engine_probe
short_description: Ask a running engine for a real generation
description:
  - Asks an OpenAI-compatible engine for its health, its models and one real generation through each of the
    completions and the chat endpoint. It changes nothing.
  - Health alone proves little. It stays 200 while a worker rank is dead; then a generation fails at once, or hangs
    until the engine's own timeout. This module tells these apart.
  - It fails only where its arguments are wrong, or with O(strict). What it found are checks, which a gate judges.
options:
  base_url:
    description: Address of the engine, such as V(http://10.93.1.11:8000).
    type: str
    required: true
  api_key:
    description: Key of the engine's API.
    type: str
  model:
    description: Served name of the model; the first that the engine serves, when left out.
    type: str
  generate:
    description: Ask for generations. Without them, only what stays 200 while a rank is dead is seen.
    type: bool
    default: true
  chat:
    description: Ask for a chat generation too. A model without a chat template has none.
    type: bool
    default: true
  template:
    description:
      - Arguments of the chat template, for the chat generation. Templates ignore those that they don't know.
      - Those of GLM-5.3 ask for the utmost effort unless told otherwise, and a short answer then ends inside the thoughts.
    type: dict
    default: {reasoning_effort: low}
  max_tokens:
    description: How many tokens to ask for.
    type: int
    default: 16
  timeout:
    description: Seconds that one request may take. The first after a boot may compile something.
    type: float
    default: 120
  host:
    description: Name of the deployment or host in the checks.
    type: str
    default: engine
  strict:
    description: Fail the task where a check failed.
    type: bool
    default: false
extends_documentation_fragment: [sparklanes, sparklanes.info]
attributes:
  check_mode:
    details: Asks for the same generations in check mode; a few tokens leave nothing behind.
"""

EXAMPLES = r"""
- name: The engine generates
  engine_probe:
    base_url: http://10.93.1.11:8000
    model: tiny
  register: probe
"""

RETURN = r"""
checks:
  description: ENGINE.HEALTH, ENGINE.MODELS, ENGINE.COMPLETION, ENGINE.FINITE and ENGINE.CHAT.
  type: list
  elements: dict
  returned: always
verdict:
  description: V(pass), V(warn) or V(fail).
  type: str
  returned: always
facts:
  description:
    - What was answered (health, version, models, model, completion, chat, metrics). Each of C(completion) and C(chat) with the C(request) (path
      and body) that brought it.
  type: dict
  returned: always
actions:
  description: Empty.
  type: list
  elements: str
  returned: always
"""

import time
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.checks import FAIL, PASS, Check, failures, sentence, verdict
from ansible.module_utils.sparklanes.engine.api import (
    BROKEN,
    NAN,
    REFUSED,
    TIMEOUT,
    Engine,
    EngineError,
    Generation,
    parse_chat,
    parse_completion,
)
from ansible.module_utils.sparklanes.engine.metrics import engine_metrics

PROMPT = "The lighthouse keeper wrote in his diary that"
MESSAGES = [{"role": "user", "content": "Answer in one short sentence: what is a lighthouse for?"}]
FINISHED = ("stop", "length")
LOG = "Look at the engine's log."
NAN_LOGITS = "The engine computes NaN: verify weights and overlays on every rank."
# A generation that ended by itself and brought nothing to read: (blanks alone, no text at all). Only a chat passes a template and parsers.
NOTHING_TO_READ = {
    "ENGINE.COMPLETION": (
        "The text is blanks: a model that writes those (small, random), not a broken engine.",
        "Tokens were made that have no text, as special ones: compare tokenizer and generation_config.json with the model's repository.",
    ),
    "ENGINE.CHAT": (
        "The text is blanks: a model that writes those (small, random, of another template), not a broken engine.",
        "Tokens were made, so something swallowed their text: compare the reasoning and tool-call parser of lane_engine_args and the chat "
        "template with the model; /v1/completions shows what it writes.",
    ),
}
DEAD_RANK = "Look at the container and the log of every rank: a rank is dead, cut off or stuck. Health does not show it."


class Probe:
    """Asks one engine, collects facts and checks."""

    def __init__(self, engine: Engine, params: dict[str, Any]) -> None:
        self.engine = engine
        self.params = params
        self.checks: list[Check] = []
        self.facts: dict[str, Any] = {}
        # Whether the last logprobs that were seen are numbers; None: none were seen.
        self.finite: bool | None = None

    def check(self, id: str, ok: bool, found: str, expected: str = "", remedy: str = "") -> None:
        self.checks.append(Check(id, self.params["host"], PASS if ok else FAIL, found, expected, "" if ok else remedy))

    def run(self) -> None:
        healthy = self.health()
        model = self.model() if healthy else ""
        if self.params["generate"] and model:
            self.completion(model)
            if self.params["chat"]:
                self.chat(model)
        # Last, so that the counters hold what was just generated.
        self.extras()

    def health(self) -> bool:
        try:
            self.engine.health()
        except EngineError as error:
            remedy = {
                REFUSED: "It is still loading, or it ended: look at the rank's container and log.",
                TIMEOUT: "It listens and does not answer: look at the rank's log.",
            }.get(error.kind, "Look at the rank's log: the engine core may have died.")
            self.facts["health"] = error.status
            self.check("ENGINE.HEALTH", False, error.message, "HTTP 200", remedy)
            return False
        self.facts["health"] = 200
        self.check("ENGINE.HEALTH", True, "HTTP 200", "HTTP 200")
        return True

    def model(self) -> str:
        wanted = self.params["model"]
        try:
            models = self.engine.models()
        except EngineError as error:
            remedy = "Give the api_key of this lane." if error.status in (401, 403) else "Look at the rank's log."
            self.check("ENGINE.MODELS", False, error.message, "a list of models", remedy)
            return ""
        names = [model.id for model in models]
        self.facts["models"] = [{"id": model.id, "max_model_len": model.max_model_len} for model in models]
        ok = wanted in names if wanted else bool(names)
        self.check(
            "ENGINE.MODELS",
            ok,
            ", ".join(names) or "none",
            wanted or "at least one",
            "Compare lane_served_model_name with what is asked for.",
        )
        self.facts["model"] = (wanted or names[0]) if ok else None
        return self.facts["model"] or ""

    def extras(self) -> None:
        """Nice to know; an engine without them is judged all the same."""
        for name, ask in (("version", self.engine.version), ("metrics", self._metrics)):
            try:
                self.facts[name] = ask()
            except EngineError:
                self.facts[name] = None

    def _metrics(self) -> dict[str, Any]:
        return dict(engine_metrics(self.engine.metrics()).to_dict())

    def completion(self, model: str) -> None:
        body = {"model": model, "prompt": PROMPT, "logprobs": 1}
        made = self.ask("completion", "ENGINE.COMPLETION", "/v1/completions", body, parse_completion)
        if made:
            self.check(
                "ENGINE.FINITE",
                bool(self.finite),
                f"{len(made.logprobs)} logprobs" + ("" if made.finite else ", not all of them finite"),
                "finite logprobs",
                NAN_LOGITS,
            )

    def chat(self, model: str) -> None:
        body = {"model": model, "messages": MESSAGES}
        if self.params["template"]:
            body["chat_template_kwargs"] = self.params["template"]
        self.ask("chat", "ENGINE.CHAT", "/v1/chat/completions", body, parse_chat)

    def ask(self, name: str, id: str, path: str, body: dict[str, Any], parse: Callable[[Any], Generation]) -> Generation | None:
        """One generation, judged. Returns it where the engine answered with one."""
        expected = f"non-empty text within {self.params['timeout']:g} s"
        began = time.monotonic()
        try:
            asked = {**body, "max_tokens": self.params["max_tokens"], "temperature": 0}
            made = parse(self.engine.post(path, asked))
        except EngineError as error:
            self.facts[name] = {"error": error.kind, "status": error.status, "message": error.message}
            self.check(id, False, self.failed(error), expected, self.remedy(error))
            return None
        seconds = time.monotonic() - began
        text = made.text or made.reasoning
        self.facts[name] = {
            "request": {"path": path, "body": asked},
            "text": made.text,
            "reasoning": made.reasoning,
            "finish_reason": made.finish_reason,
            "prompt_tokens": made.prompt_tokens,
            "completion_tokens": made.completion_tokens,
            "replacement_characters": text.count("\ufffd"),
            "seconds": round(seconds, 3),
        }
        tokens = made.completion_tokens or 0
        ok = bool(text.strip()) and made.finish_reason in FINISHED and tokens > 0
        found = f"{tokens} tokens in {seconds:.1f} s, finish_reason {made.finish_reason or 'none'}, {len(text)} characters"
        # Chat is asked without logprobs: what the completion showed of the numbers holds for it too.
        if made.logprobs or not made.finite:
            self.finite = made.finite
        self.check(id, ok, found, expected, self.remedy_of_text(id, made, text))
        return made

    def remedy_of_text(self, id: str, made: Generation, text: str) -> str:
        """What to do about a text that is none. NaN is blamed only where nothing shows that the numbers are finite."""
        if text.strip() or made.finish_reason not in FINISHED or not made.completion_tokens:
            return LOG
        if not self.finite:
            return LOG if made.finish_reason == "stop" else f"Empty text of full length is what NaN logits give. {NAN_LOGITS}"
        blanks, nothing = NOTHING_TO_READ[id]
        return f"The numbers are finite. {blanks if text else nothing}"

    def failed(self, error: EngineError) -> str:
        if error.kind == TIMEOUT:
            return f"health is 200, but a generation brought nothing: {error.message}"
        if error.kind in (REFUSED, BROKEN) or (error.status or 0) >= 500:
            return f"health was 200, but a generation ended the engine or found it dead: {error.message}"
        return str(error.message)

    def remedy(self, error: EngineError) -> str:
        if error.kind == NAN:
            return NAN_LOGITS
        if error.kind in (TIMEOUT, REFUSED, BROKEN) or (error.status or 0) >= 500:
            return DEAD_RANK
        if error.status in (401, 403):
            return "Give the api_key of this lane."
        if "chat template" in error.message:
            return "The model has no chat template: stage one as an extra of the lane, or probe with chat: false."
        return LOG


def main() -> None:
    module = AnsibleModule(
        {
            "base_url": {"type": "str", "required": True},
            "api_key": {"type": "str", "no_log": True},
            "model": {"type": "str"},
            "generate": {"type": "bool", "default": True},
            "chat": {"type": "bool", "default": True},
            "template": {"type": "dict", "default": {"reasoning_effort": "low"}},
            "max_tokens": {"type": "int", "default": 16, "no_log": False},
            "timeout": {"type": "float", "default": 120},
            "host": {"type": "str", "default": "engine"},
            "strict": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        engine = Engine(params["base_url"], params["api_key"], params["timeout"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    probe = Probe(engine, params)
    probe.run()
    answer = {
        "checks": [check.to_dict() for check in probe.checks],
        "verdict": verdict(probe.checks),
        "facts": probe.facts,
        "actions": [],
    }
    wrong = failures(probe.checks)
    if params["strict"] and wrong:
        module.fail_json(msg="; ".join(sentence(check) for check in wrong), **answer)
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
