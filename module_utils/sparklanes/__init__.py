# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""Everything sparklanes knows, as pure Python on the standard library.

A parser takes text and returns data; a rule takes data and returns checks; only
the outermost function of a file touches the system, below a root path that tests
point at a recorded tree. Modules carry this package to the Sparks.
"""
