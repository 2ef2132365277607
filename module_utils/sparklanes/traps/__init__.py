# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What others paid for, as rules over a lane: those of any engine as code, those of a model, kit or GPU as data of group_vars/."""
