# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Models on a disk: what must be there, what is there, how it comes, how it is proven."""
