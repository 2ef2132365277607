# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Weights from Spark to Spark: who lends to whom, what is offered and sealed, which lender is taken."""
