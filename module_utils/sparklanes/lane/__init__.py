# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A recipe: its schema, rules, limits, memory budget, and the ranks that it renders."""
