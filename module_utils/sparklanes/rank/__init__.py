# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""The frozen spec of one container, the seam between recipe and machine: started, compared, restarted after a boot."""
