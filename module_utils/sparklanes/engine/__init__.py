# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What speaks vLLM: its API, its metrics, its log and the failures known in it, the names of its flags."""
