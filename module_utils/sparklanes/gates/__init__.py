# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What stops a launch: checks of preflight, gate A, gate B, of hosts and deployments."""
