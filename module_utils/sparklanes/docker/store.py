# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Which local image a lane means.

A lane names its image by the digest that a registry knows, or, for an image that no registry has, by its ID. An image that came
over another way (out of an archive, from another Spark) carries another name; it is found by what it holds:

1. under the lane's own name and digest,
2. under any other name with the same digest,
3. under one of the lane's IDs,
4. by a record that this Spark received it from one which had the digest, with the ID that proves the same content.

With overlay2 an ID is the digest of the image's configuration, which names every layer by its content. With the containerd store
it is the digest of a manifest. Both stand for the content; between the two kinds they can't be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.sparklanes.common.commands import Run
from ansible.module_utils.sparklanes.common.files import read_json, write_json
from ansible.module_utils.sparklanes.docker.containers import QUESTION_SECONDS, DockerError
from ansible.module_utils.sparklanes.docker.images import LocalImage, parse_inspect, parse_list

IMAGES = Path("/var/lib/sparklanes/images")


@dataclass(frozen=True)
class Found:
    """A local image, the name under which Docker finds it, and how it was recognised: name, digest, id or record."""

    name: str
    how: str
    image: LocalImage

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "how": self.how, **asdict(self.image)}


class ImageStore:
    """The images of this Spark."""

    def __init__(self, run: Run, root: str | Path = IMAGES) -> None:
        self._run = run
        self.root = Path(root)

    def inspect(self, name: str) -> LocalImage | None:
        """One image by a name or an ID, None where it is not here. DockerError where Docker does not say."""
        rc, out, err = self._run(["docker", "image", "inspect", name], seconds=QUESTION_SECONDS)
        if rc == 0:
            found: LocalImage = parse_inspect(out)
            return found
        if "no such image" not in err.lower():
            raise DockerError(f"docker image inspect {name}: {err.strip()}")
        return None

    def find(self, reference: str, ids: Sequence[str] = ()) -> Found | None:
        """`reference` is REPOSITORY@DIGEST, or an ID; `ids` are further IDs that mean the same."""
        digest = reference.rpartition("@")[2]
        image = self.inspect(reference)
        if image is not None:
            return Found(reference, "name" if "@" in reference else "id", image)
        if "@" in reference:
            for name in self._named(digest):
                image = self.inspect(name)
                if image is not None:
                    return Found(name, "digest", image)
        for entry in ids:
            image = self.inspect(entry)
            if image is not None:
                return Found(entry, "id", image)
        known = (self.record(digest) or {}).get("id")
        image = self.inspect(str(known)) if known else None
        return Found(str(known), "record", image) if image is not None else None

    def _named(self, digest: str) -> list[str]:
        rc, out, err = self._run(
            ["docker", "image", "ls", "--digests", "--no-trunc", "--format", "{{json .}}"], seconds=QUESTION_SECONDS
        )
        if rc != 0:
            raise DockerError(f"docker image ls: {err.strip()}")
        return [f"{row.repository}@{row.digest}" for row in parse_list(out) if row.digest == digest and row.repository]

    def _record(self, digest: str) -> Path:
        return self.root / f"{digest.rpartition(':')[2]}.json"

    def record(self, digest: str) -> dict[str, Any] | None:
        """What this Spark noted of the image with this digest."""
        found: dict[str, Any] | None = read_json(self._record(digest))
        return found

    def note(self, digest: str, **facts: Any) -> None:
        """Add to what is known of the image with this digest."""
        write_json(self._record(digest), {**(self.record(digest) or {}), **facts}, 0o644)
