# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Failures of engines, by a line of their log: RDMA, NCCL, and ranks that look for each other."""

from __future__ import annotations

from ansible.module_utils.sparklanes.engine.known import Known, known, named

# NCCL writes a peer as 10.0.0.2<40000>, gloo as [10.0.0.2]:40000.
_PEER = r"\[?(?P<peer>[\w.:%-]{2,60}?)\]?(?:<\d+>|:\d+)"

FABRIC: tuple[Known, ...] = (
    known(
        "gid",
        r"ibv_modify_qp failed with (?P<errno>\d+) (?P<why>[^,]{0,80}?), on dev (?P<dev>\S{1,40}?),.{0,200}?"
        r"local GID index (?P<index>\d+), local GID (?P<gid>[^\s,]{1,60})",
        "RDMA on {dev} could not connect: {why} (errno {errno}, GID index {index}, GID {gid})",
        "The GID table moved or the address is gone: run the fabric preflight, leave the index unpinned, or bounce "
        "the interface.",
    ),
    known(
        "gid",
        r"ibv_modify_qp failed|local GID ::",
        "RDMA could not connect its queue pairs",
        "Run the fabric preflight: the GID, the MTU or the pairing of the two ends is wrong.",
    ),
    known(
        "rdma_port",
        r"Got async (?:fatal )?event ?: ?(?P<what>port error|port down|device fatal|local catastrophic error|device is no longer usable)",
        "an RDMA port of this rank failed ({what})",
        "Look at cable, switch and the kernel log of this Spark (mlx5); then playbooks/fabric_test.yml.",
        hw=True,
    ),
    known(
        "rdma_unanswered",
        r"Got completion (?:from peer "
        + _PEER
        + r" )?with (?:status|error)[ =]{1,3}(?P<what>IBV_WC_\w{3,30}(?:\(\d+\))?|\d{1,3})",
        "another rank no longer answered over RDMA ({what})",
        "That rank died, or its link did: read its container's state, its log and its kernel log.",
        after=True,
    ),
    known(
        "peer_lost",
        r"Connection closed by remote peer " + _PEER + r"|NCCL error[^:]{0,200}: remote process exited",
        "another rank closed its connection{told}",
        "That rank died first: read its log and its container's state.",
        after=True,
        more=named,
    ),
    known(
        "nccl_no_network",
        r"Failed to initialize any NET plugin",
        "NCCL found no network that it may use",
        "NCCL_NET or NCCL_IB_HCA names what this Spark doesn't have: check /dev/infiniband in the container and the fabric preflight.",
    ),
    known(
        "collective_timeout",
        r"Watchdog caught collective operation timeout",
        "the ranks waited for each other in a collective until NCCL's time was over",
        "One of them did not come along: it is dead, cut off, stuck, or computes something else (other flags, other model).",
        after=True,
    ),
    known(
        "nccl_connect",
        r"ncclTransport(?:Tree|Ring|P2p)?(?:Connect|Setup)",
        "NCCL could not connect the ranks",
        "Read the NCCL WARN lines of all ranks; run the fabric preflight.",
        after=True,
    ),
    known(
        "nccl_unhandled",
        r"unhandled system error|unhandled cuda error|nccl(?:System|Internal|Remote|UnhandledCuda)Error|"
        r"NCCL error[^:]{0,200}: (?:internal|remote|invalid usage)",
        "NCCL gave up",
        "The cause stands in the NCCL WARN lines before it, often in the log of another rank; run the fabric preflight.",
        after=True,
    ),
    known(
        "socket_fallback",
        r"NET/IB : No device found|NCCL INFO Using network Socket",
        "NCCL found no RDMA device and fell back to TCP sockets",
        "Check NCCL_IB_HCA against the devices of this Spark, /dev/infiniband and IPC_LOCK in the container; "
        "a lane on sockets serves at less than half speed.",
    ),
    known(
        "nccl_interface",
        r"no socket interface found|Unable to find address for: (?P<interface>[\w.@-]{1,32})",
        "an interface of the fabric was not found, or has no address {interface}",
        "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that this Spark lacks or that has no address.",
    ),
    known(
        "rendezvous_timeout",
        r"DistStoreError: Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<here>\d+)/(?P<want>\d+)",
        "after {seconds} s only {here} of {want} ranks had joined",
        "A rank did not start or cannot reach the head's master port over the fabric: read the other ranks' logs.",
        after=True,
    ),
    known(
        "rendezvous_timeout",
        r"DistNetworkError: The client socket has timed out after (?P<ms>\d+)\s?ms while trying to connect to "
        r"\((?P<host>[^,]{1,80}), (?P<port>\d+)\)",
        "the head did not answer at {host} port {port} within {ms} ms",
        "The head did not start, or a firewall or a wrong fabric address stands between: read the head's log.",
        after=True,
    ),
    known(
        "port_in_use",
        r"DistNetworkError:.{0,300}?(?:EADDRINUSE|address already in use)",
        "the master port is taken",
        "Find the listener (ss -ltnp): a rank that was not stopped, or another service on lane_master_port.",
    ),
    known(
        "rendezvous_timeout",
        r"DistNetworkError:|DistStoreError:|Timed out waiting for clients",
        "the ranks did not find each other",
        "Compare master address and port on all ranks and read the other ranks' logs.",
        after=True,
    ),
)
