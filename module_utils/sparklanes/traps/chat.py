# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Traps of chat: parsers, templates and the arguments of templates, in a lane and in a request.

The templates of GLM-5.3 begin with `reasoning_effort if it is low or high else max`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible.module_utils.sparklanes.lane.view import View, mapping, number
from ansible.module_utils.sparklanes.traps.frame import ADVISE, NOTE, REFUSE, Rules

RULES = Rules()

EFFORTS = ("low", "high")
PARSERS = {"--reasoning-parser": "glm45", "--tool-call-parser": "glm47"}
# A thinking request with fewer tokens may end inside its thoughts (measured: high about 36 words, max about 420).
THINKING_TOKENS = 1000
KWARGS = "--default-chat-template-kwargs"


@RULES.add(
    "PARSERS",
    REFUSE,
    want="--reasoning-parser: glm45, --tool-call-parser: glm47, --enable-auto-tool-choice",
    remedy="Add them to lane_engine_args, or take the family of the lane.",
    source="FP8 TP4 recipe: three gaps that stay silent",
)
def parsers(view: View) -> Iterator[str]:
    """A lane of GLM-5.3 has both parsers and automatic tool choice.

    Without them thoughts stand in the answer, and a request with tools gets 400.
    """
    if not (view.flash or view.big) or view.unknown("lane_engine_args"):
        return
    for flag, parser in PARSERS.items():
        if view.args.get(flag) != parser:
            yield f"{flag} is {view.args.get(flag, 'absent')}"
    if not view.has("--enable-auto-tool-choice"):
        yield "--enable-auto-tool-choice is absent"


@RULES.add(
    "TEMPLATE_THINKING",
    REFUSE,
    want="--chat-template with a template that knows enable_thinking",
    remedy="Mount the patched template as an extra and name it in --chat-template.",
    source="743B README: notes, enable_thinking",
)
def template(view: View) -> Iterator[str]:
    """On the 743B model enable_thinking needs the patched template.

    The published one has no such variable and opens the thoughts in any case: the argument does nothing, without a word.
    """
    if view.big and "enable_thinking" in view.json(KWARGS) and "--chat-template" not in view.args:
        yield f"{KWARGS} has enable_thinking, and the template is the model's own"


@RULES.add(
    "TEMPLATE_IMAGES",
    NOTE,
    want="--chat-template with a multimodal template",
    remedy="Mount chat_template_mm.jinja as an extra, if images shall be sent.",
    source="Flash 2x README; FP8 TP4 recipe",
)
def images(view: View) -> Iterator[str]:
    """Images want a multimodal template.

    Flash's weights bring a template for text: a request with an image gets 500.
    """
    if view.flash and "--chat-template" not in view.args and not view.has("--language-model-only"):
        yield "no --chat-template: requests with images may get 500"


@RULES.add(
    "EFFORT_VALUE",
    REFUSE,
    want="low or high",
    remedy="Write reasoning_effort: low or high. Where Max is meant, leave it out.",
    source="FP8 TP4 recipe: reasoning effort; 743B README",
)
def effort(view: View) -> Iterator[str]:
    """The reasoning effort of GLM-5.3 is low or high.

    Anything else, medium too, silently means Max: about ten times the thoughts of high.
    """
    given = view.json(KWARGS)
    if (view.flash or view.big) and "reasoning_effort" in given and given["reasoning_effort"] not in EFFORTS:
        yield f"{KWARGS} has reasoning_effort {given['reasoning_effort']}, which means Max"


@RULES.add(
    "EFFORT_UNSET",
    ADVISE,
    want="reasoning_effort: low or high",
    remedy="Set reasoning_effort in --default-chat-template-kwargs, or accept that Max is meant.",
    source="FP8 TP4 recipe: reasoning effort",
)
def unset(view: View) -> Iterator[str]:
    """A lane that thinks says how much.

    Without reasoning_effort the template asks for Max.
    """
    given = view.json(KWARGS)
    silent = "reasoning_effort" not in given and given.get("enable_thinking") is not False
    if (view.flash or view.big) and silent and not view.unknown("lane_engine_args"):
        yield "no default reasoning_effort: requests without one think at Max"


@RULES.add(
    "EFFORT_CONTRADICTION",
    ADVISE,
    want="reasoning_effort: low beside enable_thinking: false",
    remedy="Add reasoning_effort: low, or accept the trap: the closed block wins.",
    source="FP8 TP4 recipe: reasoning effort",
)
def contradiction(view: View) -> Iterator[str]:
    """Who turns thinking off sets the effort to low as well.

    The line that asks for effort is emitted in any case. Unset, it asks for Max, and the empty block after it forbids to think.
    """
    given = view.json(KWARGS)
    if (view.flash or view.big) and given.get("enable_thinking") is False and given.get("reasoning_effort") != "low":
        yield f"enable_thinking: false with reasoning_effort {given.get('reasoning_effort', 'unset, which means Max')}"


@RULES.add(
    "CLEAR_THINKING",
    NOTE,
    want="clear_thinking: true for chats",
    remedy="Add clear_thinking: true to --default-chat-template-kwargs for chats. Agents that rely on earlier thoughts leave it.",
    source="cfontes TP4 README: learnings, after the model card",
)
def clear(view: View) -> Iterator[str]:
    """In a chat, thoughts of earlier turns are cleared.

    Otherwise each turn replays them into the context.
    """
    given = view.json(KWARGS)
    if (view.flash or view.big) and given.get("enable_thinking") is not False and given.get("clear_thinking") is not True:
        yield "no clear_thinking: each turn of a chat carries the thoughts of the earlier ones"


def request_faults(body: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong with a chat request to GLM-5.3 by the same rules. `defaults`: the lane's default template arguments."""
    own = mapping(body.get("chat_template_kwargs"))
    given = {**(defaults or {}), **own}
    if "reasoning_effort" in body:  # the field of the API becomes an argument of the template
        given["reasoning_effort"] = body["reasoning_effort"]
    faults = []
    effort = given.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        faults.append(f"reasoning_effort {effort} means Max: the template knows {' and '.join(EFFORTS)}")
    thinks = given.get("enable_thinking") is not False
    if not thinks and effort != "low" and "enable_thinking" in own:
        faults.append("enable_thinking: false beside an effort that asks for thoughts: add reasoning_effort: low")
    limit = number(body.get("max_tokens") if body.get("max_tokens") is not None else body.get("max_completion_tokens"))
    if thinks and limit is not None and limit < THINKING_TOKENS and effort != "low":
        faults.append(
            f"max_tokens {limit:g} may end inside the thoughts: turn them off, set effort low, or allow {THINKING_TOKENS}"
        )
    return faults
