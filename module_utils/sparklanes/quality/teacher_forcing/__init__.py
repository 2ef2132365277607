# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Recorded token sequences scored again, and judged against the noise of their reference."""
