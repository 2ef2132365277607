# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What one launch needs, frozen: releases, state and transaction of a deployment, restore, status, archive."""
