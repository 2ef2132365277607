# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Two virtual machines with a kernel of their own, for what containers can't show: reboots, swap, page cache, RDMA.

Each has a management NIC, reached through a port of the loopback interface, and two fabric NICs joined to the other's by
a socket, with soft RoCE under the names of a Spark's devices. Without KVM they run too, only slower.

Everything lies in `<clone>/.sandbox/vm`, the sockets in `/run` (layout.py). The image is cached there; the disks are
overlays without a name, gone with their machine.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox import debian, packages
from sandbox.host import Host, detect
from sandbox.inventory import render
from sandbox.layout import Clone, boot_id, content_key, give_to_user, write_atomically
from sandbox.shell import SandboxError, attempt, capture, step, tail

HERE = Path(__file__).parent

# Ubuntu's modules for RDMA are in an extra package, which only the generic kernel brings along.
KERNELS = {"debian": "linux-image-amd64", "ubuntu": "linux-image-generic"}
GUEST_PACKAGES = "udev,libpam-systemd,dbus,initramfs-tools,zstd,rdma-core,ibverbs-providers,ibverbs-utils,rdmacm-utils,perftest"
# Drivers that no such machine has, and timers that would work while we measure.
HOOKS = [
    'rm -rf "$1"/lib/modules/*/kernel/sound "$1"/lib/modules/*/kernel/drivers/gpu "$1"/lib/modules/*/kernel/drivers/media '
    '"$1"/lib/modules/*/kernel/drivers/net/wireless "$1"/lib/firmware/*',
    'for kernel in "$1"/lib/modules/*; do chroot "$1" depmod "${kernel##*/}"; done',
    'chroot "$1" update-initramfs -u -k all',
    'chroot "$1" systemctl enable systemd-networkd.service emulated-rdma.service',
    'chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer '
    "dpkg-db-backup.timer serial-getty@ttyS0.service",
    # Docker starts when it is asked for: emulated, it takes half a minute of each boot.
    'chroot "$1" systemctl disable docker.service containerd.service',
    'chroot "$1" apt-get clean',
    'rm -f "$1"/etc/hostname && : > "$1"/etc/machine-id',
    'chmod 700 "$1"/root/.ssh && chmod 600 "$1"/root/.ssh/authorized_keys "$1"/etc/ssh/ssh_host_ed25519_key',
]
DISK = "3G"
MEMORY_MIB = 1536
FABRICS = ("192.168.100.0/24", "192.168.101.0/24")
# The NICs of each machine. The fabric's have the names of the two halves of a Spark's first QSFP port.
NICS = ("mgmt0", "enp1s0f0np0", "enP2p1s0f0np0")
BOOT_SECONDS = 600  # without KVM it takes minutes


@dataclass(frozen=True)
class Machine:
    """One of the two: its names, addresses and files."""

    number: int
    home: Path
    run: Path

    @property
    def name(self) -> str:
        return f"spark-{self.number}"

    @property
    def pid_file(self) -> Path:
        return self.home / f"{self.name}.pid"

    @property
    def console(self) -> Path:
        return self.home / f"{self.name}.console"

    @property
    def monitor(self) -> Path:
        return self.run / f"{self.name}.monitor"

    def mac(self, nic: int) -> str:
        return f"52:54:00:5a:{self.number:02x}:{nic:02x}"

    def addresses(self) -> list[str]:
        """Of the fabric NICs, in their order."""
        return [fabric.replace(".0/", f".{10 + self.number}/") for fabric in FABRICS]

    def wire(self, nic: int) -> Path:
        return self.run / f"{self.name}-{nic}"

    @property
    def pid(self) -> int:
        """Of the running machine, 0 if it doesn't run: the number in the file counts only for a process that was started with it."""
        try:
            pid = int(self.pid_file.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return 0
        return pid if str(self.pid_file).encode() in arguments else 0

    def command(self, peer: Machine, image: Path, port: int, kvm: bool) -> list[str]:
        argv = [*qemu(image, kvm), "-name", self.name, "-m", str(MEMORY_MIB), "-initrd", str(image / "initrd"), "-append"]
        argv += [f"root=/dev/vda rw console=ttyS0 quiet panic=5 systemd.hostname={self.name}"]
        argv += ["-drive", f"file={image / 'disk'},format=raw,if=none,id=disk,snapshot=on,cache=unsafe"]
        argv += ["-device", "virtio-blk-pci,drive=disk", "-device", "virtio-rng-pci"]
        # restrict: from inside, nothing of this machine's network can be reached
        argv += ["-netdev", f"user,id=mgmt,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:{port}-:22"]
        argv += ["-device", f"virtio-net-pci,netdev=mgmt,mac={self.mac(0)},romfile="]
        for nic in range(1, len(NICS)):
            ends = f"local.type=unix,local.path={self.wire(nic)},remote.type=unix,remote.path={peer.wire(nic)}"
            argv += ["-netdev", f"dgram,id=fabric{nic},{ends}"]
            argv += ["-device", f"virtio-net-pci,netdev=fabric{nic},mac={self.mac(nic)},host_mtu=9000,romfile="]
        argv += ["-serial", f"file:{self.console}", "-qmp", f"unix:{self.monitor},server=on,wait=off"]
        return [*argv, "-pidfile", str(self.pid_file), "-daemonize"]

    def tell(self, execute: str, **arguments: Any) -> Any:
        """One command to the machine's monitor."""
        with socket.socket(socket.AF_UNIX) as link, link.makefile("rw") as stream:
            link.settimeout(20)
            link.connect(str(self.monitor))
            answer: dict[str, Any] = {}
            for message in ({"execute": "qmp_capabilities"}, {"execute": execute, "arguments": arguments}):
                stream.write(json.dumps(message))
                stream.flush()
                while not {"return", "error"} & set(answer := json.loads(stream.readline())):
                    pass  # the greeting, and events
            if "error" in answer:
                raise SandboxError(f"{self.name}: {execute}: {answer['error'].get('desc')}")
            return answer["return"]

    def cut_power(self) -> None:
        """It starts again at once, with its disk as it is."""
        self.tell("system_reset")

    def plug(self, nic: int, plugged: bool) -> None:
        """The cable of a fabric NIC."""
        self.tell("set_link", name=f"fabric{nic}", up=plugged)

    def stop(self) -> None:
        pid = self.pid
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            if self.pid != pid or not pid:
                break
            os.kill(pid, number)
            until = time.monotonic() + seconds
            while self.pid == pid and time.monotonic() < until:
                time.sleep(0.05)
        for path in (self.pid_file, self.monitor, *(self.wire(nic) for nic in range(1, len(NICS)))):
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Pair:
    """The two machines of one clone."""

    clone: Clone

    @property
    def home(self) -> Path:
        return self.clone.home / "vm"

    @property
    def inventory(self) -> Path:
        return self.home / "inventory"

    @property
    def untouched(self) -> Path:
        """What a test notes of machines that nothing has changed yet; gone with them."""
        return self.home / "untouched.json"

    @property
    def ssh_config(self) -> Path:
        return self.home / "ssh.config"

    @property
    def machines(self) -> tuple[Machine, Machine]:
        run = Path("/run") / f"{self.clone.name}-vm"
        return Machine(1, self.home, run), Machine(2, self.home, run)

    def ssh(self, name: str, *command: str) -> list[str]:
        return ["ssh", "-F", str(self.ssh_config), name, *command]

    def prepare(self) -> None:
        debian.check_machine(detect())
        if os.uname().machine != "x86_64":
            raise SandboxError(f"The virtual machines are x86_64 ones; this is {os.uname().machine}.")
        packages.install(self.clone, packages.missing("vms"))

    def up(self) -> None:
        """Two machines that have just booted: disks of an earlier run are not used again."""
        self.prepare()
        self.down()
        for folder in (self.home, self.clone.tmp, self.machines[0].run):
            folder.mkdir(parents=True, exist_ok=True)
        image = self.image()
        ports = free_ports(len(self.machines))
        self.write_ssh(image, ports)
        self.write_inventory(image, ports)
        kvm = self.kvm_runs(image)
        how = "with KVM" if kvm else "without KVM"
        with step(f"machines: {', '.join(machine.name for machine in self.machines)}, {how}"):
            for machine, peer, port in zip(self.machines, self.machines[::-1], ports, strict=True):
                code, out, error = attempt(machine.command(peer, image, port, kvm), env=os.environ | {"TMPDIR": str(self.home)})
                if code != 0:
                    raise SandboxError(f"{machine.name} did not start: {(error or out).strip()}")
            mine = [path for machine in self.machines for path in (machine.pid_file, machine.monitor)]
            give_to_user([*mine, self.home, self.ssh_config, image, image / "id_ed25519", self.inventory / "10-vm.yml"])
            for machine in self.machines:
                self.wait_for(machine)

    def kvm_runs(self, image: Path) -> bool:
        """Whether KVM gets this very kernel to its end without a disk, a panic: some clouds' KVM opens, and runs only guests made for it."""
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            return False
        known = self.home / "kvm"
        if not known.exists() or known.read_text().split()[:1] != [boot_id()]:
            argv = [*qemu(image, True), "-m", "512", "-append", "panic=-1", "-no-reboot"]
            code, _, _ = attempt(argv, timeout=15)
            write_atomically(known, f"{boot_id()} {'runs' if code == 0 else 'does not'}\n")
        return known.read_text().split()[1] == "runs"

    def down(self) -> None:
        for machine in self.machines:
            machine.stop()
        shutil.rmtree(self.machines[0].run, ignore_errors=True)
        shutil.rmtree(self.inventory, ignore_errors=True)
        self.untouched.unlink(missing_ok=True)

    def wait_for(self, machine: Machine, other_than: str = "") -> None:
        """Until it has booted, and is in another boot than the one told."""
        end, answer = time.monotonic() + BOOT_SECONDS, ""
        command = self.ssh(machine.name, "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait")
        while time.monotonic() < end:
            if not machine.pid:
                raise SandboxError(f"{machine.name} has ended; the end of its console:\n{tail(machine.console)}")
            _, out, error = attempt([*command[:1], "-o", "ConnectTimeout=5", "-o", "BatchMode=yes", *command[1:]], timeout=300)
            answer = (out + error).strip()
            words = out.split()
            if words[1:] and words[0] != other_than:
                if words[1] == "running":
                    return
                failed = attempt(self.ssh(machine.name, "systemctl --failed --plain --no-legend"))[1]
                raise SandboxError(f"{machine.name} is {words[1]} after its boot: {failed.strip()}")
            time.sleep(0.5)
        raise SandboxError(
            f"{machine.name} hasn't booted after {BOOT_SECONDS} s, ssh said: {answer or 'nothing'}; "
            f"the end of its console:\n{tail(machine.console)}"
        )

    # --- image

    def image(self) -> Path:
        """A folder with disk, kernel and the keys that go with it, made once."""
        host = detect()
        if host.distribution not in KERNELS:
            raise SandboxError(
                f"No kernel package is known for '{host.distribution or 'unknown'}': use Debian 12 or Ubuntu 24.04."
            )
        sources = debian.host_sources()
        wanted = f"{GUEST_PACKAGES},{debian.host_node_packages()},{KERNELS[host.distribution]}"
        key = content_key(host.codename, *sources, wanted, *HOOKS, DISK, HERE / "guest", json.dumps(self.network()))
        out = self.home / f"image-{key}"
        if not out.exists():
            for old in self.home.glob("image-*"):
                shutil.rmtree(old)
            part = self.home / "image-part"
            part.mkdir()
            with step("image with a kernel"):
                self.build(part, host, sources, wanted)
            part.rename(out)
        return out

    def build(self, folder: Path, host: Host, sources: list[str], wanted: str) -> None:
        for name in ("id_ed25519", "host_key"):
            capture(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"sparklanes-vm {name}", "-f", str(folder / name)])
        files, tree, tar = folder / "files.tar", folder / "tree", folder / "tree.tar"
        files.write_bytes(self.files(folder))
        debian.mmdebstrap(self.clone, host, sources, wanted, "apt", tar, [f"tar-in {files} /", *HOOKS])
        tree.mkdir()
        with tarfile.open(tar) as archive:
            archive.extractall(tree, filter="fully_trusted")  # as root it keeps owners; we have just made it
        for name in ("vmlinuz", "initrd"):
            source = next(path for path in sorted((tree / "boot").iterdir()) if path.name.startswith(name))
            shutil.copyfile(source, folder / name)
        capture(["mkfs.ext4", "-q", "-F", "-d", str(tree), str(folder / "disk"), DISK], timeout=600)
        shutil.rmtree(tree)
        tar.unlink()
        files.unlink()

    def files(self, folder: Path) -> bytes:
        """What the machines have beside packages, as a tar."""
        made = self.network() | {
            "root/.ssh/authorized_keys": (folder / "id_ed25519.pub").read_text(),
            "etc/ssh/ssh_host_ed25519_key": (folder / "host_key").read_text(),
            "etc/ssh/ssh_host_ed25519_key.pub": (folder / "host_key.pub").read_text(),
        }
        buffer = io.BytesIO(debian.tar_of(HERE / "guest"))
        with tarfile.open(fileobj=buffer, mode="a") as tar:
            for name, text in made.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text.encode())
                tar.addfile(entry, io.BytesIO(text.encode()))
        return buffer.getvalue()

    def network(self) -> dict[str, str]:
        """Names and addresses of the NICs, for systemd. Both machines have all of these files: a MAC tells which is meant."""
        made = {}
        for nic, name in enumerate(NICS):
            macs = " ".join(machine.mac(nic) for machine in self.machines)
            made[f"etc/systemd/network/10-{name}.link"] = f"[Match]\nMACAddress={macs}\n\n[Link]\nName={name}\n"
        for machine in self.machines:
            for nic, address in enumerate(machine.addresses(), 1):
                made[f"etc/systemd/network/20-{machine.name}-{NICS[nic]}.network"] = (
                    f"[Match]\nMACAddress={machine.mac(nic)}\n\n[Link]\nMTUBytes=9000\nRequiredForOnline=no\n\n"
                    f"[Network]\nAddress={address}\nIPv6AcceptRA=no\n"
                )
        return made

    # --- how they are reached

    def write_ssh(self, image: Path, ports: list[int]) -> None:
        key = " ".join((image / "host_key.pub").read_text().split()[:2])
        known = "".join(f"[127.0.0.1]:{port} {key}\n" for port in ports)
        write_atomically(self.home / "known_hosts", known)
        text = "".join(f"Host {machine.name}\n    Port {port}\n" for machine, port in zip(self.machines, ports, strict=True)) + (
            "Host *\n"
            "    HostName 127.0.0.1\n"
            "    User root\n"
            f'    IdentityFile "{image / "id_ed25519"}"\n'
            "    IdentitiesOnly yes\n"
            f'    UserKnownHostsFile "{self.home / "known_hosts"}"\n'
            "    StrictHostKeyChecking yes\n"
            "    LogLevel ERROR\n"
        )
        write_atomically(self.ssh_config, text)

    def write_inventory(self, image: Path, ports: list[int]) -> None:
        """As inventory/sandbox: it stands for itself, by links to what the project ships."""
        self.inventory.mkdir(parents=True, exist_ok=True)
        root = self.clone.root
        for name, target in {
            "00-groups.yml": root / "inventory/shipped/00-groups.yml",
            "80-lanes.yml": root / "inventory/lanes/80-lanes.yml",
            "90-families.yml": root / "inventory/lanes/90-families.yml",
            "99-limit.yml": root / "inventory/lanes/99-limit.yml",
            "group_vars": root / "group_vars",
        }.items():
            (self.inventory / name).symlink_to(os.path.relpath(target, self.inventory))
        known = self.home / "known_hosts"
        shared = {
            "ansible_host": "127.0.0.1",
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(image / "id_ed25519"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
            "fabric_allow_soft": True,
            "fabric_cidr": list(FABRICS),
        }
        hosts = {machine.name: {"ansible_port": port} for machine, port in zip(self.machines, ports, strict=True)}
        tree = {"all": {"children": {"sparks": {"hosts": hosts, "vars": shared}}}}
        write_atomically(self.inventory / "10-vm.yml", f"---\n# Written by script/sandbox vms up\n{render(tree)}\n")


def qemu(image: Path, kvm: bool) -> list[str]:
    """A machine without devices. KVM gets the plain processor that every host has; the emulated one is as good as it can be."""
    how = ["-accel", "kvm"] if kvm else ["-accel", "tcg", "-cpu", "max"]
    bare = ["-nodefaults", "-no-user-config", "-display", "none"]
    # Most of the memory lies above 4 GiB: below, a kernel has no zone Normal, and large free blocks couldn't be counted.
    return [
        "qemu-system-x86_64",
        "-machine",
        "q35,max-ram-below-4g=512M",
        *how,
        "-smp",
        "1",
        *bare,
        "-kernel",
        str(image / "vmlinuz"),
    ]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on; asked for at once, so that they differ."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(socket.socket()) for _ in range(count)]
        for link in links:
            link.bind(("127.0.0.1", 0))
        return [link.getsockname()[1] for link in links]
