#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Generate on a running engine, and score what it generated."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: decode_score
short_description: Generate on a running engine, and score what it generated
description:
  - Asks an OpenAI-compatible vLLM for answers with their logprobs, and then for the logprobs of the same tokens as a prompt. An engine that
    computes rightly gives both nearly the same. Writes the whole record to O(result_path). Run it on the head of the deployment.
  - >-
    The answers are of six cases, about 13,000 tokens together, each of which found faults that no other one saw (docs/decode.md): V(cold),
    V(hit) (the same prompts again, from the prefix cache), V(continued) (an answer and new text behind it), V(crowd) (as many at once as the
    lane takes), V(long) (tokens after the 1,000th), V(greedy) (temperature 0).
  - It returns a summary. The record is judged on the controller, by the filter C(sparklanes_decode).
  - A lane whose window or cache leaves no room for a case does without it, and the record says so.
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
  source:
    description: The texts of the prompts, as the filter C(sparklanes_corpus_texts) reads them from C(banks/corpus).
    type: dict
    required: true
  max_model_len:
    description: Longest sequence of the lane in tokens; what the engine says, when left out.
    type: int
  max_num_seqs:
    description: How many requests the lane takes at once; up to 64 of them are asked together.
    type: int
    default: 32
  cases:
    description: Only these, and V(cold) where one of them reads what it left in the cache; all, when left out.
    type: list
    elements: str
    choices: [cold, hit, continued, crowd, long, greedy]
  long_form:
    description: One answer of 12,288 tokens more. It takes minutes.
    type: bool
    default: false
  seed:
    description: Draws lengths, and the numbers of the engine's sampler; that of the day (UTC, days since 1970), when left out.
    type: int
  result_path:
    description: Where the record is written, whole or not at all; gzipped when the name ends in C(.gz).
    type: path
    required: true
  timeout:
    description: Seconds that one request may take. A long answer on a slow lane needs minutes.
    type: float
    default: 1800
  detach:
    description:
      - Start a job that outlives the connection, and return its name. For C(long_job).
    type: bool
    default: false
  job:
    description: Name of that job.
    type: str
    default: decode
extends_documentation_fragment: [sparklanes, sparklanes.job, sparklanes.jobs]
attributes:
  check_mode:
    details: >-
      Says what it would ask, and asks the engine nothing. It predicts a change also where a real run would only attach to a job
      that runs already.
  diff_mode:
    details: The record is too large to show. The result sums it up.
  idempotent:
    details: Asks at each run and writes O(result_path) anew. With O(detach), a second run attaches to a job that runs.
"""

EXAMPLES = r"""
- name: What it generates is what it reads
  long_job:
    module: decode_score
    args:
      base_url: http://10.93.1.11:8000
      source: "{{ 'banks/corpus' | sparklanes_corpus_texts }}"
      result_path: /var/lib/sparklanes/deployments/sparks/decode.json.gz
      detach: true
"""

RETURN = r"""
result_path:
  description: The record.
  type: str
  returned: when it was asked
bytes:
  description: Size of the record.
  type: int
  returned: when it was asked
model:
  description: The model that answered.
  type: str
  returned: when it was asked
tokens:
  description: Generated tokens of each case.
  type: dict
  returned: when it was asked
block:
  description: Tokens of one block of the engine's KV cache.
  type: int
  returned: when it was asked
seed:
  description: What drew the lengths.
  type: int
  returned: when it was asked
seconds:
  description: How long it took.
  type: float
  returned: when it was asked
foreign_tokens:
  description: Tokens that were generated for others meanwhile; null, where the engine does not count.
  type: int
  returned: when it was asked
lacks:
  description: The cases that were not asked, and why.
  type: list
  elements: str
  returned: when it was asked
job:
  description: The job that was started or attached to.
  type: str
  returned: with O(detach)
job_run:
  description: Which run of that job it is, as option C(run) of C(job_status) wants it.
  type: str
  returned: with O(detach)
attached:
  description: Whether the job ran already.
  type: bool
  returned: with O(detach)
actions:
  description: What was done, in sentences.
  type: list
  elements: str
  returned: always
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.quality.decode.cases import CASES
from ansible.module_utils.sparklanes.quality.decode.score import JOB, job, run
from ansible.module_utils.sparklanes.quality.detached import start
from ansible.module_utils.sparklanes.quality.records import Silent

OPTIONS: dict[str, Any] = {
    "base_url": {"type": "str", "required": True},
    "api_key": {"type": "str", "no_log": True},
    "model": {"type": "str"},
    "source": {"type": "dict", "required": True},
    "max_model_len": {"type": "int"},
    "max_num_seqs": {"type": "int", "default": 32},
    "cases": {"type": "list", "elements": "str", "choices": list(CASES)},
    "long_form": {"type": "bool", "default": False},
    "seed": {"type": "int"},
    "result_path": {"type": "path", "required": True},
    "timeout": {"type": "float", "default": 1800},
    "detach": {"type": "bool", "default": False},
    "job": {"type": "str", "default": JOB},
    "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
}
ASKING = ("base_url", "model", "source", "max_model_len", "max_num_seqs", "cases", "long_form", "seed", "result_path", "timeout")


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    params = module.params
    for name in ("max_num_seqs", "max_model_len"):
        if params[name] is not None and params[name] < 1:
            module.fail_json(msg=f"{name} is {params[name]}: a lane takes 1 or more")
    args = {name: params[name] for name in ASKING}
    if module.check_mode:
        module.exit_json(changed=True, actions=[f"Would ask {params['base_url']} for the answers of each case, and score them"])
    try:
        if params["detach"]:
            module.exit_json(**start(params, job, args, "answers of each case"))
        summary = run(args, params["api_key"], Silent())
    except (JobError, OSError, ValueError) as error:
        module.fail_json(msg=f"decode on {params['base_url']}: {error}")
    tokens = sum(summary["tokens"].values())
    module.exit_json(changed=True, actions=[f"Generated and scored {tokens} tokens into {summary['result_path']}"], **summary)


if __name__ == "__main__":
    main()
