# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A Spark as a machine: kernel settings, units, files that we write there, mounts, who listens on it, parity."""
