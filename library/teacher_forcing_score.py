#!/usr/bin/python
# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Score a corpus of token ids on a running engine."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: teacher_forcing_score
short_description: Score a corpus of token ids on a running engine
description:
  - Asks an OpenAI-compatible vLLM for the logprob of every token of a corpus, O(runs) times over, one request at a
    time, and writes the whole record to O(result_path). Run it on the head of the deployment.
  - With O(build_corpus) it makes the corpus first, with this lane's own tokenizer and its own greedy answers, and the
    record carries it. That is how the reference of a bank is recorded.
  - It returns a summary. The record is judged on the controller, by the filter C(teacher_forcing_judge).
  - A logprob that is not finite is recorded and left to the judge. An engine that stops answering fails the task.
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
  corpus:
    description: Path of a corpus or bank on this Spark, plain or gzipped.
    type: path
  corpus_data:
    description: The corpus or bank itself.
    type: dict
  build_corpus:
    description: Make a corpus for this lane, and score it.
    type: dict
    suboptions:
      source:
        description: The texts, as the filter C(teacher_forcing_source) reads them from C(banks/corpus).
        type: dict
        required: true
      max_model_len:
        description: Longest sequence of the lane; what the engine says, when left out.
        type: int
      max_doc_tokens:
        description: Longest document. Larger ones judge deeper positions and take longer.
        type: int
        default: 16384
      chat_tokens:
        description:
          - Length of each chat completion, 32 at least. It is generated token by token, so a slow engine needs
            most of the time for it.
        type: int
        default: 200
      chunk:
        description: The lane's max_num_batched_tokens.
        type: int
        default: 2048
      min_chunk:
        description:
          - Every scheduled chunk of every document but the short canary is longer than this. With a drafter and
            CUDA graphs give the largest captured graph (V(512) by default in vLLM), because of vLLM issue 53488.
        type: int
        default: 0
      template:
        description: Arguments for the chat template, such as C(enable_thinking).
        type: dict
        default: {}
  runs:
    description: How many passes. Two are needed to tell a systematic difference from noise.
    type: int
    default: 2
  engine:
    description: What is known of the lane (image, overlays and weights of each rank, KV cache type …). Kept in the record.
    type: dict
    default: {}
  result_path:
    description: Where the record is written, whole or not at all; gzipped when the name ends in C(.gz).
    type: path
    required: true
  state_path:
    description: A state file in the form of our jobs (phase, done, total, a heartbeat) while this module runs.
    type: path
  timeout:
    description: Seconds that one request may take. A long document on a slow lane needs minutes.
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
    default: score
extends_documentation_fragment: [sparklanes, sparklanes.job, sparklanes.jobs]
attributes:
  check_mode:
    details: >-
      Says what it would score, and asks the engine nothing. It predicts a change also where a real run would only attach to a job
      that runs already.
  diff_mode:
    details: The record is too large to show. The result sums it up.
  idempotent:
    details: Scores at each run and writes O(result_path) anew. With O(detach), a second run attaches to a job that runs.
"""

EXAMPLES = r"""
- name: The lane is scored against its bank
  long_job:
    module: teacher_forcing_score
    args:
      base_url: http://10.93.1.11:8000
      corpus: /var/lib/sparklanes/deployments/sparks/bank.json.gz
      result_path: /var/lib/sparklanes/deployments/sparks/score.json.gz
      detach: true

- name: The reference of a bank is recorded
  teacher_forcing_score:
    base_url: http://10.93.1.11:8000
    runs: 3
    build_corpus:
      source: "{{ 'banks/corpus' | teacher_forcing_source }}"
    result_path: /var/lib/sparklanes/deployments/sparks/reference.json.gz
"""

RETURN = r"""
result_path:
  description: The record.
  type: str
  returned: when it was scored
bytes:
  description: Size of the record.
  type: int
  returned: when it was scored
corpus_sha256:
  description: Names the corpus.
  type: str
  returned: when it was scored
model:
  description: The model that answered.
  type: str
  returned: when it was scored
documents:
  description: How many documents were scored.
  type: int
  returned: when it was scored
tokens:
  description: How many tokens of the corpus have logprobs in the first run.
  type: int
  returned: when it was scored
runs:
  description: How many passes were made.
  type: int
  returned: when it was scored
seconds:
  description: How long each pass took.
  type: list
  elements: float
  returned: when it was scored
not_finite:
  description: Documents with NaN.
  type: list
  elements: str
  returned: when it was scored
tokenizer_ok:
  description: Whether the lane's tokenizer gives the banked ids; null, if it couldn't be asked.
  type: bool
  returned: when it was scored
lacks:
  description: What a corpus for this lane lacks, and why.
  type: list
  elements: str
  returned: when it was scored
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

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sparklanes.common.files import hash_file
from ansible.module_utils.sparklanes.jobs.reporter import Reporter
from ansible.module_utils.sparklanes.jobs.state import JobError
from ansible.module_utils.sparklanes.quality.detached import start
from ansible.module_utils.sparklanes.quality.records import Progress, Silent
from ansible.module_utils.sparklanes.quality.teacher_forcing.score import JOB, job, run

BUILD: dict[str, Any] = {
    "source": {"type": "dict", "required": True},
    "max_model_len": {"type": "int"},
    "max_doc_tokens": {"type": "int", "default": 16384, "no_log": False},
    "chat_tokens": {"type": "int", "default": 200, "no_log": False},
    "chunk": {"type": "int", "default": 2048},
    "min_chunk": {"type": "int", "default": 0},
    "template": {"type": "dict", "default": {}},
}
OPTIONS: dict[str, Any] = {
    "base_url": {"type": "str", "required": True},
    "api_key": {"type": "str", "no_log": True},
    "model": {"type": "str"},
    "corpus": {"type": "path"},
    "corpus_data": {"type": "dict"},
    "build_corpus": {"type": "dict", "options": BUILD},
    "runs": {"type": "int", "default": 2},
    "engine": {"type": "dict", "default": {}},
    "result_path": {"type": "path", "required": True},
    "state_path": {"type": "path"},
    "timeout": {"type": "float", "default": 1800},
    "detach": {"type": "bool", "default": False},
    "job": {"type": "str", "default": JOB},
    "jobs_dir": {"type": "path", "default": "/var/lib/sparklanes/jobs"},
}
SCORING = ("base_url", "model", "build_corpus", "runs", "engine", "result_path", "timeout")


def detached(module: AnsibleModule, args: dict[str, Any]) -> None:
    params = module.params
    if params["corpus"]:
        # A path stays the same where the bank at it is another one, and who scores that is not to be attached to.
        args = {**args, "corpus_sha256": hash_file(Path(params["corpus"]))}
    module.exit_json(**start(params, job, args, f"{args['runs']} passes over the corpus"))


def here(module: AnsibleModule, args: dict[str, Any]) -> None:
    params = module.params
    report: Reporter | None = None
    if params["state_path"]:
        path = Path(params["state_path"])
        report = Reporter(path.parent, params["job"])
        report.path = path
        report.start()
    progress: Progress = report or Silent()
    try:
        summary = run(args, params["api_key"], progress)
    except BaseException as error:
        if report:
            report.end(str(error) or type(error).__name__)
        raise
    if report:
        report.end()
    done = f"Scored {summary['documents']} documents ({summary['tokens']} tokens) {summary['runs']} times into {summary['result_path']}"
    module.exit_json(changed=True, actions=[done], **summary)


def main() -> None:
    module = AnsibleModule(
        OPTIONS,
        supports_check_mode=True,
        mutually_exclusive=[("corpus", "corpus_data", "build_corpus")],
        required_one_of=[("corpus", "corpus_data", "build_corpus")],
    )
    params = module.params
    if params["runs"] < 1:
        module.fail_json(msg=f"runs is {params['runs']}: at least one pass must be made, and two to be judged")
    args = {name: params[name] for name in SCORING}
    args["corpus"] = params["corpus"] or params["corpus_data"]
    if module.check_mode:
        what = "a corpus made for this lane" if params["build_corpus"] else params["corpus"] or "the given corpus"
        module.exit_json(changed=True, actions=[f"Would score {what} on {params['base_url']} {params['runs']} times"])
    try:
        (detached if params["detach"] else here)(module, args)
    except (JobError, OSError, ValueError) as error:
        module.fail_json(msg=f"teacher forcing on {params['base_url']}: {error}")


if __name__ == "__main__":
    main()
