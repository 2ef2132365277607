# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The GPU: nvidia-smi, Xids, the clock cap, its speed under load, and whether anything serves here."""
