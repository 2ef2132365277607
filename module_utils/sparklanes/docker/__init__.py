# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Containers and images of Docker: who runs, which image it is, how one gets here, what it holds."""
