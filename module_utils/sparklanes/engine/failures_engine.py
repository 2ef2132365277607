# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Failures of engines, by a line of their log: files, flags, and what an image doesn't know."""

from __future__ import annotations

from ansible.module_utils.sparklanes.engine.known import Known, known

ENGINE: tuple[Known, ...] = (
    known(
        "shm_too_small",
        r"Insufficient space in /dev/shm[^:]{0,80}: (?P<need>\d+ \w{1,8}) required, (?P<free>\d+ \w{1,8}) free",
        "/dev/shm is too small: {need} required, {free} free",
        "Raise shm_size in lane_container; with ipc: host the Spark's own /dev/shm counts.",
    ),
    known(
        "shm_too_small",
        r"No space left on device",
        "/dev/shm is full",
        "Raise shm_size in lane_container, and remove psm_* files of dead engines with ipc: host.",
        where=r"/dev/shm",
    ),
    known(
        "disk_full",
        r"OSError: \[Errno 28\] No space left on device",
        "a disk is full",
        "Free space where the engine writes (compile cache, logs) on this Spark.",
    ),
    known(
        "no_more_processes",
        r"can't start new thread|pthread_create failed[^:]{0,60}: Resource temporarily unavailable|fork: (?:retry: )?Resource temporarily",
        "the rank may start no more processes or threads",
        "Raise lane_container.pids_limit (0 is none), or the nproc of lane_container.ulimits; in a Spark that has run for long, look for what is left of dead engines.",
    ),
    known(
        "bad_flag",
        r"^(?:vllm|main\.py|\S{0,80}(?:vllm|api_server)\S{0,40}?)(?: serve)?: error: (?P<what>.+)",
        "the engine refused its arguments: {what}",
        "Correct lane_engine_args; the spelling belongs to the engine version of the image.",
    ),
    known(
        "bad_config",
        r"validation errors? for (?P<what>\w{0,40}(?:Config|Args))\b",
        "the engine refused its configuration ({what})",
        "Correct lane_engine_args, or the variable of the lane that makes the flag.",
        follows=2,
    ),
    known(
        "model_not_found",
        r"Invalid repository ID or local directory specified|is not a local folder and is not a valid model identifier|"
        r"does not appear to have a file named (?P<file>\S{1,120})|Cannot find any model weights|Repo id must be in the form|"
        r"HFValidationError",
        "the engine found no model where it was told to look",
        "Check lane_model.path and container_path, and stage the weights again.",
    ),
    known(
        "model_unsupported",
        r"Model architectures? .{0,200}?(?:not supported|failed to be inspected)",
        "this engine does not know the architecture of the model",
        "Use an image (or overlay) that has it.",
    ),
    known(
        "weights_unreadable",
        r"SafetensorError: (?P<what>.+)",
        "a weights file could not be read: {what}",
        "Verify the staged weights in full. Where every hash matches, the file is not at fault: look at memory and the loader.",
    ),
    known(
        "import_error",
        r"(?:ImportError|ModuleNotFoundError): (?P<what>.+)",
        "a module could not be imported: {what}",
        "Overlay and image do not belong together, or the overlay set is incomplete.",
    ),
    known(
        "port_in_use",
        r"\[Errno 98\]|[Aa]ddress already in use|EADDRINUSE",
        "a port that the engine needs is taken",
        "Find the listener (ss -ltnp): a rank that was not stopped, or another service on lane_port or lane_master_port.",
    ),
)
