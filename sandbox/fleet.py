# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Bring the sandbox up, take it down, say how it is."""

from __future__ import annotations

import fcntl
import io
import json
import shutil
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from sandbox import debian, engine_image, leftovers, model, oci, packages, services, vms
from sandbox import inventory as inventories
from sandbox.containers import Containers, containers
from sandbox.host import address, detect, free_subnets, needed, networks_in_use, pick_engine
from sandbox.layout import Clone, State, boot_id, content_key, give_to_user, read_state, write_atomically
from sandbox.shell import SandboxError, attempt, builders, capture, say, step, warn

MODEL = "sparklanes/tiny"
HERE = Path(__file__).parent
# What roles install with pip on a node: the Hub's client, by the role's own lock, so that the hashes fit.
NODE_LOCK = HERE.parent / "roles/model_weights/files/hub.lock"


@contextmanager
def locked(clone: Clone) -> Iterator[None]:
    """One `up` or `down` at a time. The lock goes with the process, however it ends."""
    clone.home.mkdir(parents=True, exist_ok=True)
    with (clone.home / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another script/sandbox works here; waiting for it.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def keys(light: bool, names: list[str]) -> dict[str, str]:
    """What an `up` would build from, to tell whether the running one is still right."""
    return {
        "node": content_key(HERE / "node", HERE / "emulated", debian.NODE_PACKAGES),
        "engine": engine_image.image_key(light),
        "model": content_key(HERE / "model.py", HERE / "corpus.txt"),
        "wheels": content_key(NODE_LOCK),
        "nodes": " ".join(names),
    }


def prepare(clone: Clone) -> str:
    """Install the packages that are missing; which container engine it will be comes back."""
    host = detect()
    debian.check_machine(host)
    engine = pick_engine(host.limits.may_raise)
    packages.install(clone, packages.missing(*purposes(engine)))
    return engine


def purposes(engine: str) -> list[str]:
    """Rows of packages.PACKAGES that a sandbox needs of this machine."""
    return ["sandbox", "podman"] if engine == "podman" else ["sandbox"]


def up(clone: Clone, count: int, light: bool) -> None:
    names = [f"spark-{number}" for number in range(1, count + 1)]
    began = time.monotonic()
    engine_name = prepare(clone)
    host = detect()
    workarounds = needed(host)
    state = read_state(clone.state_file)
    wanted = keys(light, names)
    if state is not None and state.complete and state.engine == engine_name:
        engine = containers(state.engine, clone, host, workarounds)
        if condition(engine, state) == leftovers.UP and state.keys == wanted and clone.inventory.exists():
            say(f"The sandbox is up already: {', '.join(state.nodes)}. Nothing changed.")
            return
    if state is not None or clone.run.exists():
        say("Removing what an earlier run left.")
        remove(clone, state)
    say(f"Bringing up {count} nodes with {engine_name} in {clone.home}")
    if workarounds.names():
        say(f"  this machine needs: {', '.join(workarounds.names())}")

    engine = containers(engine_name, clone, host, workarounds)
    state = State(boot_id=boot_id(), engine=engine_name, light=light, keys=wanted)
    state.write(clone.state_file)
    for folder in (clone.cache, clone.log, clone.tmp, clone.nodes):
        folder.mkdir(parents=True, exist_ok=True)
    engine.open()
    make_networks(clone, engine, state)
    build(clone, engine, state, names, light)
    write_atomically(clone.inventory, inventories.text(clone, state))
    give_to_user([clone.inventory, clone.ssh, *clone.ssh.iterdir()])
    state.complete = True
    state.write(clone.state_file)
    shutil.rmtree(clone.tmp, ignore_errors=True)
    say(f"Up after {time.monotonic() - began:.0f} s. Inventory: inventory/sandbox; a shell: script/sandbox ssh spark-1")


def make_networks(clone: Clone, engine: Containers, state: State) -> None:
    """First of all: from now on the addresses are taken. The lock is the machine's, for two clones may come up at once."""
    with Path("/run/sparklanes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mgmt, fabric = free_subnets(networks_in_use())
        state.networks = {"mgmt": mgmt, "fabric": fabric}
        state.write(clone.state_file)
        for which, subnet in state.networks.items():
            engine.create_network(which, subnet)


@contextmanager
def all_or_nothing() -> Iterator[None]:
    """When one step fails, or the person has seen enough, the others end too."""
    try:
        yield
    except BaseException:
        builders.stop()
        raise


def build(clone: Clone, engine: Containers, state: State, names: list[str], light: bool) -> None:
    """Everything that can be built at the same time is; the nodes start as soon as their image is there."""
    host = detect()
    sources = debian.host_sources()
    gateway = address(state.networks["mgmt"], 1)

    def node_image() -> str:
        key = debian.node_key(host, sources)
        with step("node image"):
            if not engine.has_image(key):
                engine.import_image(debian.node_rootfs(clone, host, sources), key)
        return key

    def base() -> Path:
        with step("engine image: base"):
            return debian.engine_base(clone, host, sources)

    def site(program: Future[str]) -> Path:
        path = program.result()
        with step("engine image: vLLM for CPU"):
            return engine_image.engine_site(clone, path)

    def small_things(program: Future[str]) -> tuple[Path, Path]:
        make_keys(clone)
        make_model(clone)
        return debian.registry_program(clone), engine_image.node_wheels(clone, program.result(), NODE_LOCK)

    with ThreadPoolExecutor(max_workers=5) as pool, all_or_nothing():
        key = pool.submit(node_image)
        program = pool.submit(engine_image.pip, clone)
        engine_base = pool.submit(base)
        engine_site = None if light else pool.submit(site, program)
        registry, wheels = pool.submit(small_things, program).result()
        image = key.result()
        with step(f"nodes: {', '.join(names)}"):
            start_nodes(clone, engine, state, names, image)
        forget_old_images(clone, light)
        services.start(clone, state, services.services(clone, gateway, registry, wheels), gateway)
        with step("nodes ready"):
            for name in names:
                wait_for(clone, name, state.nodes[name]["mgmt"])
            limits = all(limits_processes(clone, name) for name in names)
        site_path = engine_site.result() if engine_site else None
        with step("engine image: into the registry"):
            digest = push_engine(clone, engine_base.result(), site_path, gateway, light)

    prune(clone, engine_base.result(), site_path, wheels, debian.node_key(host, sources))
    repository = f"{gateway}:{services.PORTS['registry']}/{repository_name(light)}"
    hub = [str(HERE / "hub.py"), f"--root={clone.home / 'hub'}", "--print-revision", MODEL]
    state.values = {
        "address": gateway,
        "repository": repository,
        "digest": digest,
        "vllm": engine_image.engine_version(),
        "revision": capture(["python3", *hub]).strip(),
        "pids_limit": "yes" if limits else "no",
    }


def repository_name(light: bool) -> str:
    return "sparklanes/base-without-vllm" if light else "sparklanes/engine"


def image_record(clone: Clone, light: bool) -> Path:
    return clone.cache / f"{repository_name(light).replace('/', '-')}.json"


def forget_old_images(clone: Clone, light: bool) -> None:
    """An image that is no longer the right one would stay in the registry for ever: it starts empty then."""
    record = image_record(clone, light)
    if record.exists() and json.loads(record.read_text()).get("image") != engine_image.image_key(light):
        record.unlink()
        shutil.rmtree(clone.home / "registry", ignore_errors=True)


def prune(clone: Clone, base: Path, site: Path | None, wheels: Path, node_key: str) -> None:
    """Cached things of an older key are never used again."""
    used = {base, wheels, clone.cache / f"node-{node_key}.tar"}
    patterns = ["engine-base-*", "wheels-*", "node-*.tar"]
    if site is not None:
        used.add(site)
        patterns.append("engine-site-*")
    for pattern in patterns:
        for path in set(clone.cache.glob(pattern)) - used:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def push_engine(clone: Clone, base: Path, site: Path | None, gateway: str, light: bool) -> str:
    registry = oci.Registry(gateway, services.PORTS["registry"])
    name = repository_name(light)
    made = image_record(clone, light)
    wanted = {"base": base.name, "image": engine_image.image_key(light)}
    known = json.loads(made.read_text()) if made.exists() else {}
    if {**known, **wanted} == known and registry.has_manifest(name, known["digest"]):
        return str(known["digest"])
    layers = engine_image.engine_layers(clone, base, site)
    digest = registry.push(name, engine_image.engine_version(), layers, engine_image.engine_config(light), clone.tmp)
    write_atomically(made, json.dumps({**wanted, "digest": digest}))
    for layer in layers:
        if clone.tmp in layer.path.parents:
            layer.path.unlink()
    return digest


def make_keys(clone: Clone) -> None:
    """One key for us, one for the nodes: with a known host key nobody has to trust on first use."""
    clone.ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("id_ed25519", "node_host_key"):
        if not (clone.ssh / name).exists():
            part = clone.ssh / f"{name}.part"
            for stale in (part, part.with_suffix(".part.pub")):
                stale.unlink(missing_ok=True)
            capture(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{clone.name} {name}", "-f", str(part)])
            part.with_name(f"{name}.part.pub").rename(clone.ssh / f"{name}.pub")
            part.rename(clone.ssh / name)


def make_model(clone: Clone) -> None:
    place = clone.home / "hub" / MODEL
    key = content_key(HERE / "model.py", HERE / "corpus.txt")
    mark = clone.cache / "model.key"
    if place.exists() and mark.exists() and mark.read_text() == key:
        return
    part = clone.tmp / "model"
    shutil.rmtree(part, ignore_errors=True)
    model.make(part)
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    part.rename(place)
    write_atomically(mark, key)


def start_nodes(clone: Clone, engine: Containers, state: State, names: list[str], image: str) -> None:
    for number, name in enumerate(names, 1):
        state.nodes[name] = {which: address(subnet, 10 + number) for which, subnet in state.networks.items()}
    state.write(clone.state_file)
    write_ssh_config(clone, state)
    for name, node in state.nodes.items():
        docker = clone.nodes / name / "docker"  # overlay2 wants a real file system below it, not another overlay
        docker.mkdir(parents=True, exist_ok=True)
        extra = [f"--volume={docker}:/var/lib/docker"]
        extra += [f"--add-host={other}:{at['mgmt']}" for other, at in state.nodes.items() if other != name]
        extra += emulations(engine)
        engine.create_node(name, image, node["mgmt"], node["fabric"], extra)
        engine.put(name, node_files(clone, address(state.networks["mgmt"], 1)))
    for name in names:
        engine.start(name)
    if not needed(detect()).private_cgroup2:  # else podman's network namespaces are bound in our own mount namespace
        state.netns = [place for name in names if (place := engine.netns(name))]
    state.write(clone.state_file)


def emulations(engine: Containers) -> list[str]:
    """Stand-ins, laid into a node only where the machine needs them, under names that say what they are."""
    needs = needed(detect())
    folder = HERE / "emulated"
    places = []
    if needs.emulated_memlock_runc:
        places.append((folder / "emulated-memlock-runc", "/usr/local/sbin/runc"))  # before /usr/sbin in systemd's PATH
    if needs.emulated_no_gpu_hook:
        places.append((folder / "emulated-no-gpu-hook", "/usr/bin/nvidia-container-runtime-hook"))
    return [f"--volume={source}:{target}:ro" for source, target in places]


def node_files(clone: Clone, gateway: str) -> bytes:
    """What differs between sandboxes: keys, and where registry and wheels are."""
    registry = f"{gateway}:{services.PORTS['registry']}"
    wheels = f"http://{gateway}:{services.PORTS['wheels']}/"
    pip = f"[global]\nno-index = true\nfind-links = {wheels}\ntrusted-host = {gateway}\ndisable-pip-version-check = true\n"
    files = {
        "root/.ssh/authorized_keys": ((clone.ssh / "id_ed25519.pub").read_bytes(), 0o600),
        "etc/ssh/ssh_host_ed25519_key": ((clone.ssh / "node_host_key").read_bytes(), 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": ((clone.ssh / "node_host_key.pub").read_bytes(), 0o644),
        "etc/docker/daemon.json": (json.dumps({"insecure-registries": [registry]}).encode(), 0o644),
        "etc/pip.conf": (pip.encode(), 0o644),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder, mode in (("root/.ssh", 0o700), ("etc/docker", 0o755)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def write_ssh_config(clone: Clone, state: State) -> None:
    host_key = " ".join((clone.ssh / "node_host_key.pub").read_text().split()[:2])
    known = "".join(f"{name},{node['mgmt']} {host_key}\n" for name, node in state.nodes.items())
    write_atomically(clone.ssh / "known_hosts", known)
    lines = [f"Host {name}\n    HostName {node['mgmt']}\n" for name, node in state.nodes.items()]
    lines += [
        "Host *\n"
        "    User root\n"
        f'    IdentityFile "{clone.ssh / "id_ed25519"}"\n'
        "    IdentitiesOnly yes\n"
        f'    UserKnownHostsFile "{clone.ssh / "known_hosts"}"\n'
        "    StrictHostKeyChecking yes\n"
        "    LogLevel ERROR\n"
    ]
    write_atomically(clone.ssh / "config", "".join(lines))


def ssh(clone: Clone, node: str, *command: str) -> list[str]:
    return ["ssh", "-F", str(clone.ssh / "config"), node, *command]


def wait_for(clone: Clone, node: str, mgmt: str) -> None:
    end = time.monotonic() + 90
    answer = ""
    while time.monotonic() < end:
        command = ssh(clone, node, "systemctl is-system-running --wait; docker info --format '{{.Driver}}'")
        code, out, err = attempt([*command[:1], "-o", "ConnectTimeout=2", "-o", "BatchMode=yes", *command[1:]], timeout=90)
        answer = (out + err).strip()
        if code == 0:
            if out.split()[0] != "running":
                _, failed, _ = attempt(ssh(clone, node, "systemctl --failed --plain --no-legend"))
                warn(f"{node} is {out.split()[0]}: {failed.strip()}")
            return
        time.sleep(0.3)
    raise SandboxError(f"{node} ({mgmt}) isn't ready after 90 s, it said: {answer or 'nothing'}")


def limits_processes(clone: Clone, node: str) -> bool:
    """Whether the node's Docker keeps a limit of processes, or drops it with a warning because the machine withholds the controller."""
    _, out, _ = attempt(ssh(clone, node, "docker info --format '{{.PidsLimit}}'"))
    return out.strip() == "true"


def condition(engine: Containers, state: State | None) -> str:
    serving = state is not None and len(state.services) == len(services.PORTS)
    serving = serving and all(map(services.alive, state.services.values() if state else ()))
    return leftovers.judge(state, boot_id(), engine.running() if state else (), serving)


def remove(clone: Clone, state: State | None) -> None:
    host = detect()
    workarounds = needed(host)
    clone.inventory.unlink(missing_ok=True)
    broken = False
    if state is not None:
        services.stop(state)
        engine = containers(state.engine, clone, host, workarounds)
        same_boot = state.boot_id == boot_id()
        broken = state.engine == "podman" and not same_boot
        if not broken:
            try:
                engine.open()
            except SandboxError as error:
                warn(f"{error}; what is left is removed without {state.engine}")
                broken = True
        broken = broken or engine.is_broken()
        if not broken:
            engine.remove_nodes()
            engine.remove_networks()
        engine.close()
    leftovers.sweep(clone, state)
    if broken:
        # podman waits long for processes that will never answer. The storage is ours alone: start it anew.
        shutil.rmtree(clone.storage, ignore_errors=True)
    shutil.rmtree(clone.home / "podman", ignore_errors=True)
    clone.state_file.unlink(missing_ok=True)


def down(clone: Clone, everything: bool) -> None:
    began = time.monotonic()
    state = read_state(clone.state_file)
    had = state is not None or clone.run.exists()
    if state is not None and everything and state.engine == "docker":
        containers("docker", clone, detect(), needed(detect())).remove_images()
    if had or everything:
        remove(clone, state)
    if everything:
        vms.Pair(clone).down()
        shutil.rmtree(clone.home, ignore_errors=False)
    kept = "" if everything else "; caches stay in .sandbox (--all removes them)"
    say(f"Down after {time.monotonic() - began:.0f} s{kept}." if had or everything else "The sandbox isn't up.")


def status(clone: Clone) -> int:
    state = read_state(clone.state_file)
    if state is None:
        say("The sandbox isn't up. Bring it up: script/sandbox up")
        return 1
    host = detect()
    workarounds = needed(host)
    engine = containers(state.engine, clone, host, workarounds)
    how = condition(engine, state)
    running = engine.running() if how != leftovers.STALE else []
    say(f"sandbox   {how}, {state.engine}, {'without vLLM' if state.light else 'with vLLM'}")
    for name, node in state.nodes.items():
        say(f"{name:<9} {node['mgmt']} fabric {node['fabric']} {'running' if name in running else 'NOT RUNNING'}")
    for name, known in state.services.items():
        say(f"{name:<9} {address(state.networks['mgmt'], 1)}:{services.PORTS[name]} {'up' if services.alive(known) else 'DOWN'}")
    if state.values:
        say(f"image     {state.values['repository']}@{state.values['digest']}")
        say(f"model     {MODEL} at revision {state.values['revision']}")
    say(f"emulated  {', '.join(workarounds.names()) or 'nothing but the per-node vm.* files and boot id'}")
    if how != leftovers.UP:
        say("Not whole: `script/sandbox up` puts it right, `script/sandbox down` removes it.")
    return 0 if how == leftovers.UP else 1
