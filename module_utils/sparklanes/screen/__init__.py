# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What a person typed and sees: a next command that can be pasted, whom a run is for, the lines on the screen."""
