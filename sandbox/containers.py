# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The container engine that runs the nodes: podman with its own storage, or Docker by labels.

Nothing here touches a container, image or network of anyone else: podman works in storage, a network
folder and (where the machine needs it) a mount namespace of its own; in Docker every object carries our
label and a name with the clone's hash.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandbox.host import Host, Workarounds, gateway
from sandbox.layout import Clone, write_atomically
from sandbox.leftovers import roots_in
from sandbox.limits import ulimits
from sandbox.shell import SandboxError, attempt, capture


class Containers(ABC):
    """What the sandbox needs of an engine."""

    kind = ""

    def __init__(self, clone: Clone) -> None:
        self.clone = clone

    @abstractmethod
    def argv(self, *args: str) -> list[str]: ...

    @abstractmethod
    def node_arguments(self, mgmt: str, fabric: str) -> list[str]: ...

    @abstractmethod
    def create_network(self, which: str, subnet: str) -> None: ...

    def environment(self) -> Mapping[str, str] | None:
        return None

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def attempt(self, *args: str, timeout: float = 120, stdin: bytes | None = None) -> tuple[int, str, str]:
        return attempt(self.argv(*args), env=self.environment(), timeout=timeout, stdin=stdin)

    def do(self, *args: str, timeout: float = 120, stdin: bytes | None = None) -> str:
        code, out, err = self.attempt(*args, timeout=timeout, stdin=stdin)
        if code != 0:
            raise SandboxError(f"`{self.kind} {' '.join(args)}` ended with {code}: {err.strip()[-2000:]}")
        return out

    def image(self, key: str) -> str:
        return f"localhost/{self.clone.name}-node:{key}"

    def container(self, node: str) -> str:
        return f"{self.clone.name}-{node}"

    def network(self, which: str) -> str:
        return f"{self.clone.name}-{which}"

    def has_image(self, key: str) -> bool:
        return self.attempt("image", "inspect", self.image(key))[0] == 0

    def import_image(self, tar: Path, key: str) -> None:
        self.do("import", "--change", 'CMD ["/sbin/init"]', str(tar), self.image(key), timeout=900)

    def create_node(self, node: str, key: str, mgmt: str, fabric: str, extra: Sequence[str]) -> None:
        self.do(
            "create",
            f"--name={self.container(node)}",
            f"--hostname={node}",
            f"--label=sparklanes.clone={self.clone.tag}",
            "--privileged",
            "--stop-signal=SIGRTMIN+3",  # systemd's word for: shut down
            "--shm-size=2g",  # ranks run with --ipc host: they get the node's /dev/shm, Docker's own size is ignored
            "--restart=always",  # a reboot of the node comes back
            *self.node_arguments(mgmt, fabric),
            *extra,
            self.image(key),
        )

    def put(self, node: str, tar: bytes) -> None:
        """Lay files into a node, started or not."""
        self.do("cp", "-", f"{self.container(node)}:/", stdin=tar)

    def start(self, node: str) -> None:
        self.do("start", self.container(node))

    def running(self) -> list[str]:
        """Names of our running nodes."""
        prefix = f"{self.clone.name}-"
        code, out, _ = self.attempt("ps", f"--filter=label=sparklanes.clone={self.clone.tag}", "--format={{.Names}}")
        return sorted(name.removeprefix(prefix) for name in out.split()) if code == 0 else []

    def netns(self, node: str) -> str:
        return ""

    def is_broken(self) -> bool:
        """Whether the engine believes in containers whose processes are gone."""
        return False

    def remove_nodes(self) -> None:
        _, out, _ = self.attempt("ps", "-aq", f"--filter=label=sparklanes.clone={self.clone.tag}")
        for ident in out.split():
            self.attempt("rm", "-f", "-v", ident, timeout=60)

    def remove_networks(self) -> None:
        for which in ("mgmt", "fabric"):
            self.attempt("network", "rm", self.network(which))

    def remove_images(self) -> None:
        _, out, _ = self.attempt("images", "-q", f"--filter=reference={self.image('*')}")
        for ident in set(out.split()):
            self.attempt("rmi", "-f", ident)


class Podman(Containers):
    """podman, apart from any other use of it on this machine."""

    kind = "podman"

    def __init__(self, clone: Clone, host: Host, workarounds: Workarounds) -> None:
        super().__init__(clone)
        self.host = host
        self.workarounds = workarounds
        self.conf = clone.home / "podman"
        self.namespace = clone.run / "mnt"

    def argv(self, *args: str) -> list[str]:
        command = ["podman", *args]
        if self.workarounds.private_cgroup2:
            return ["nsenter", f"--mount={self.namespace}", "--wd=/", *command]
        return command

    def environment(self) -> Mapping[str, str]:
        return os.environ | {
            "CONTAINERS_CONF": str(self.conf / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.conf / "storage.conf"),
            "TMPDIR": str(self.clone.tmp),
        }

    def containers_conf(self) -> str:
        lines = ["[containers]", 'cgroupns = "private"', 'log_driver = "k8s-file"']
        if self.workarounds.no_pids_limit:
            lines += ["pids_limit = 0"]
        if self.workarounds.own_limits:
            asked = ", ".join(f'"{name}={value}:{value}"' for name, value in ulimits(self.host.limits).items())
            lines += [f"default_ulimits = [{asked}]"]
        lines += ["[engine]", 'runtime = "crun"', 'events_logger = "file"', f'tmp_dir = "{self.clone.run}/libpod"']
        if self.workarounds.cgroupfs:
            lines += ['cgroup_manager = "cgroupfs"']
        # podman reserves default_subnet for its default network, which we never use: any that is not ours does.
        lines += [
            "[network]",
            'network_backend = "netavark"',
            f'network_config_dir = "{self.conf}/networks"',
            'default_subnet = "10.31.255.0/24"',
        ]
        return "\n".join(lines) + "\n"

    def storage_conf(self) -> str:
        return f'[storage]\ndriver = "overlay"\ngraphroot = "{self.clone.storage}"\nrunroot = "{self.clone.run}/storage"\n'

    def open(self) -> None:
        (self.conf / "networks").mkdir(parents=True, exist_ok=True)
        self.clone.tmp.mkdir(parents=True, exist_ok=True)
        write_atomically(self.conf / "containers.conf", self.containers_conf())
        write_atomically(self.conf / "storage.conf", self.storage_conf())
        self.clone.run.mkdir(parents=True, exist_ok=True)
        if not self.workarounds.private_cgroup2 or is_namespace(self.namespace):
            return
        # A namespace file must lie on a private mount; all later podman calls enter this one namespace, for a
        # new one per call would not see the network namespaces of earlier containers.
        if not os.path.ismount(self.clone.run):
            capture(["mount", "--bind", "--make-private", str(self.clone.run), str(self.clone.run)])
        self.namespace.touch()
        # podman's fixed folders below /run get private ones, too: they go with the namespace, whatever happened.
        script = (
            "for folder in netns containers crun; do mkdir -p /run/$folder; mount -t tmpfs none /run/$folder; done; "
            "umount -R /sys/fs/cgroup && "
            "{ mount -t cgroup2 -o nsdelegate none /sys/fs/cgroup 2>/dev/null || mount -t cgroup2 none /sys/fs/cgroup; }"
        )
        keep_namespace(self.namespace, script)

    def close(self) -> None:
        if is_namespace(self.namespace):
            attempt(["umount", str(self.namespace)])
        if os.path.ismount(self.clone.run):
            attempt(["umount", "-l", str(self.clone.run)])
        shutil.rmtree(self.clone.run, ignore_errors=True)

    def create_network(self, which: str, subnet: str) -> None:
        name = self.network(which)
        create = ["network", "create", "--internal", "--disable-dns", f"--subnet={subnet}", name]
        self.do(*create)
        self.do("network", "rm", name)  # podman keeps addresses by a network's name: this forgets those of a killed run
        self.do(*create)
        # The bridge gets a name of ours: podman1, podman2 … would be shared with the next clone that is down just now.
        path = self.conf / "networks" / f"{name}.json"
        network = json.loads(path.read_text())
        network["network_interface"] = self.clone.bridge(which)
        write_atomically(path, json.dumps(network, indent=2))
        # We make the bridge ourselves: podman would give that of an internal network no address, and would remove
        # it, with the address our servers listen on, when all nodes reboot at once. The keeper prevents this.
        bridge, keeper = self.clone.bridge(which), self.clone.keeper(which)
        capture(["ip", "link", "add", bridge, "type", "bridge"])
        capture(["ip", "address", "add", gateway(subnet), "dev", bridge])
        capture(["ip", "link", "add", keeper, "type", "veth", "peer", "name", f"{keeper}p"])
        for link in (keeper, f"{keeper}p"):
            capture(["ip", "link", "set", link, "up"])
        capture(["ip", "link", "set", keeper, "master", bridge])
        capture(["ip", "link", "set", bridge, "up"])

    def remove_networks(self) -> None:
        super().remove_networks()
        for which in ("mgmt", "fabric"):
            attempt(["ip", "link", "delete", self.clone.keeper(which)])
            attempt(["ip", "link", "delete", self.clone.bridge(which)])

    def node_arguments(self, mgmt: str, fabric: str) -> list[str]:
        own_cgroup = [f"--cgroup-parent=/{self.clone.name}"] if self.workarounds.cgroupfs else []
        return [
            *own_cgroup,
            "--systemd=always",
            f"--network={self.network('mgmt')}:ip={mgmt},interface_name=eth0",
            f"--network={self.network('fabric')}:ip={fabric},interface_name=fab0",
        ]

    def running(self) -> list[str]:
        """podman goes by its own records; where a monitor was killed they say `running` of what is gone."""
        return [node for node in super().running() if self._is_alive(node)]

    def is_broken(self) -> bool:
        return self.running() != super().running()

    def _is_alive(self, node: str) -> bool:
        _, pid, _ = self.attempt("inspect", "--format={{.State.Pid}}", self.container(node))
        try:
            return roots_in(Path(f"/proc/{pid.strip()}/mountinfo").read_text(), str(self.clone.storage))
        except OSError:
            return False

    def netns(self, node: str) -> str:
        return self.attempt("inspect", "--format={{.NetworkSettings.SandboxKey}}", self.container(node))[1].strip()


class Docker(Containers):
    """Docker Engine: shared with others, so everything carries our label or name."""

    kind = "docker"

    def __init__(self, clone: Clone, may_raise: bool) -> None:
        super().__init__(clone)
        self.may_raise = may_raise

    def argv(self, *args: str) -> list[str]:
        return ["docker", *args]

    def open(self) -> None:
        self.clone.run.mkdir(parents=True, exist_ok=True)
        self.clone.tmp.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        shutil.rmtree(self.clone.run, ignore_errors=True)

    def start(self, node: str) -> None:
        try:
            super().start(node)
        except SandboxError as error:
            if self.may_raise:
                raise
            raise SandboxError(
                f"{error}\n  This machine withholds CAP_SYS_RESOURCE, and Docker starts no privileged container without it. podman does: "
                "SPARKLANES_SANDBOX_ENGINE=podman script/sandbox up"
            ) from error

    def create_network(self, which: str, subnet: str) -> None:
        bridge = f"com.docker.network.bridge.name={self.clone.bridge(which)}"
        label = f"--label=sparklanes.clone={self.clone.tag}"
        self.do("network", "create", "--internal", f"--subnet={subnet}", "-o", bridge, label, self.network(which))

    def node_arguments(self, mgmt: str, fabric: str) -> list[str]:
        # systemd needs its own cgroup namespace and empty /run; the fabric is attached in create_node.
        return [
            "--cgroupns=private",
            "--tmpfs=/run:exec,mode=755",
            "--tmpfs=/run/lock",
            f"--network={self.network('mgmt')}",
            f"--ip={mgmt}",
        ]

    def create_node(self, node: str, key: str, mgmt: str, fabric: str, extra: Sequence[str]) -> None:
        super().create_node(node, key, mgmt, fabric, extra)
        self.do("network", "connect", f"--ip={fabric}", self.network("fabric"), self.container(node))


def keep_namespace(path: Path, script: str) -> None:
    """Run a shell script in a new mount namespace, which the file `path` keeps.

    The kernel keeps a mount namespace only in one with a lower number (else: Invalid argument), and newer kernels (seen on 6.18) give each
    processor a block of numbers. Where we live in a namespace of our own already, as in a container, a new one may get a lower number than
    ours; on the processor where ours was made it never does. So each is tried.
    """
    why = ""
    for processor in sorted(os.sched_getaffinity(0)):
        on_it = ["taskset", "--cpu-list", str(processor)]
        code, _, why = attempt([*on_it, "unshare", f"--mount={path}", "--propagation=private", "sh", "-ec", script])
        if code == 0:
            return
        if is_namespace(path):
            attempt(["umount", str(path)])
    raise SandboxError(f"No mount namespace can be kept in {path}: {why.strip()}")


def is_namespace(path: Path) -> bool:
    return attempt(["stat", "-fc", "%T", str(path)])[1].strip() == "nsfs"


def containers(kind: str, clone: Clone, host: Host, workarounds: Workarounds) -> Containers:
    return Podman(clone, host, workarounds) if kind == "podman" else Docker(clone, host.limits.may_raise)
