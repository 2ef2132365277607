# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""A lane from what others wrote: a recipe, a command line, the record of a container."""
