# Copyright: Contributors to the sparklanes project
# SPDX-License-Identifier: Apache-2.0
"""What sparklanes knows, in rooms: one subject each, said in the first line of its `__init__.py`.

A parser takes text and returns data; a rule takes data and returns checks; only the outermost function of a file
touches the system, below a root path that tests point at a recorded tree. A module carries to a Spark what it
imports, so what runs there uses the standard library alone, and rooms of the controller are out of its reach.
docs/architecture.md has the map; tests/unit/project/test_rooms.py holds it.
"""
