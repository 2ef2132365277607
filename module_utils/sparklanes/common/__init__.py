# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What every room uses: a check, a registered result, a file that is whole or absent, a command with a time limit, sizes, sums, secrets, tables."""
