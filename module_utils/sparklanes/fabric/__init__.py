# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""RDMA devices, GIDs, what NCCL will choose, addresses and netplan, reach and bandwidth between Sparks."""
