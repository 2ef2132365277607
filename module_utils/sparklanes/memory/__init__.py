# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""One pool for CPU and GPU: facts, pressure, a verdict, settling before a boot, the page cache."""
