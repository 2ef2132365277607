# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The variables of the environment that the fabric sets, by who else may say them. A test holds them against what is set."""

from __future__ import annotations

# They differ per Spark or follow from its addresses: no lane can know them.
FABRIC_ONLY = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_SUBNET_AWARE_ROUTING",
    "NCCL_IB_SUBNET_PREFIX_LEN",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "OMPI_MCA_btl_tcp_if_include",
)
# A lane may say them for all its Sparks, as public recipes do; where the fabric says otherwise, the fabric wins.
FABRIC_WINS = (
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_IB_DISABLE",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_IB_MERGE_NICS",
)
