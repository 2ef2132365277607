# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Work that outlives the connection that started it: state, the process inside, the runner outside, what it carries."""
