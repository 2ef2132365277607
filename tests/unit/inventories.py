"""Parse inventories in this process as ansible-playbook would: a tenth of the time of a command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible import context
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.collections import ImmutableDict
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.utils.vars import load_extra_vars
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager


class Inventory:
    """Sources under `-e` and `-l`."""

    def __init__(self, sources: Sequence[Path], extra: Sequence[str] = (), limit: str = "") -> None:
        if AnsibleCollectionConfig.collection_finder is None:
            init_plugin_loader([])
        # Ansible keeps what an earlier inventory of this process read.
        load_extra_vars.__dict__.pop("extra_vars", None)
        context.CLIARGS = ImmutableDict(extra_vars=tuple(extra), flush_cache=False)
        loader = DataLoader()
        self.sources = [str(source) for source in sources]
        self.manager = InventoryManager(loader=loader, sources=self.sources)
        self._variables = VariableManager(loader=loader, inventory=self.manager)
        self.manager.subset(limit or None)
        self.hostvars = HostVars(self.manager, self._variables, loader)

    def hosts(self, group: str) -> list[str]:
        """The hosts of a group, without the limit."""
        return [host.name for host in self.manager.groups[group].get_hosts()] if group in self.manager.groups else []

    def play_hosts(self, group: str = "sparks") -> list[str]:
        """The hosts of a play: with the limit."""
        return [host.name for host in self.manager.get_hosts(group)]

    def groups(self) -> dict[str, list[str]]:
        return {name: self.hosts(name) for name in self.manager.groups}

    def variables(self, host: str) -> dict[str, Any]:
        """As they are merged, not templated."""
        found: dict[str, Any] = self._variables.get_vars(host=self.manager.get_host(host))
        return found


@contextmanager
def ansible_globals() -> Iterator[None]:
    """What `Inventory` changes in Ansible is as before afterwards."""
    before = context.CLIARGS
    yield
    context.CLIARGS = before
    load_extra_vars.__dict__.pop("extra_vars", None)
