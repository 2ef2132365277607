# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Who a site is at a registry: its own word, what `docker login` left, or what a program of Docker's keeps."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.sparklanes.common.interfaces import interfaces


@dataclass(frozen=True)
class Login:
    """Who a site is at a registry. realm: a host that gives tokens for it, where that is another one. over_http: may go without TLS."""

    username: str
    password: str = field(repr=False)
    realm: str = ""
    over_http: bool = False

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def login_of(host: str, logins: Mapping[str, Any], docker_config: Mapping[str, Any]) -> Login | None:
    """The site's own login for a registry (engine_image_logins), else what `docker login` left in Docker's configuration; None without one."""
    names = (host, "https://index.docker.io/v1/", "index.docker.io") if host == "docker.io" else (host, f"https://{host}")
    given = logins.get(host)
    if isinstance(given, Mapping) and given.get("username"):
        return Login(
            str(given["username"]),
            str(given.get("password") or ""),
            str(given.get("realm") or ""),
            given.get("over_http") in (True, "true", "yes"),
        )
    auths = docker_config.get("auths")
    for name in names:
        entry = auths.get(name) if isinstance(auths, Mapping) else None
        if isinstance(entry, Mapping) and entry.get("auth"):
            try:
                username, colon, password = base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
            except ValueError:
                continue
            if colon:
                return Login(username, password.rstrip("\0"))
    return None


def helper_of(host: str, docker_config: Mapping[str, Any]) -> tuple[str, str]:
    """The program that keeps Docker's password for a registry, and the name that it has there; empty where none does."""
    name = "https://index.docker.io/v1/" if host == "docker.io" else host
    helpers = docker_config.get("credHelpers")
    helper = (helpers.get(name) or helpers.get(host)) if isinstance(helpers, Mapping) else None
    helper = str(helper or docker_config.get("credsStore") or "")
    return (f"docker-credential-{helper}", name) if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", helper) else ("", "")


def helped(text: str) -> Login | None:
    """What such a program answers. A token for which it has no user is none that a registry takes so."""
    try:
        told = json.loads(text)
        user, secret = str(told["Username"]), str(told["Secret"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Login(user, secret) if user and user != "<token>" else None


def is_local(host: str) -> bool:
    """Whether a registry is on this machine, where Docker too does without TLS."""
    return not interfaces(host.rpartition(":")[0] or host)
