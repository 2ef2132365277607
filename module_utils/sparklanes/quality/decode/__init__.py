# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Whether an engine that generates gives its tokens the probabilities that it gives them when it reads them: cold, on a prefix hit, beside
others, after a thousand tokens."""
