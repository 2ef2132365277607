# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What others paid for, as rules over a lane."""
