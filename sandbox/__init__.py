# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A fleet in a box: systemd nodes with Docker in containers, real vLLM on CPU, a registry, a model hub.

Only `inventory/sandbox` knows it is one. Standard library only, so that it starts on a bare machine.
"""
