"""The kernel's own RPC methods, one file a family; `table` joins them to a hub."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kite_kernel.methods import event, kernel, registry

if TYPE_CHECKING:
    from kite_kernel.core.asking import Handler
    from kite_kernel.core.hub import Hub


def table(hub: Hub) -> dict[str, Handler]:
    """Return method name -> handler. `event.publish` stands in the hub itself."""
    rows = {
        "registry.register": registry.register,
        "registry.unregister": registry.unregister,
        "registry.list_modules": registry.list_modules,
        "registry.get_module": registry.get_module,
        "event.subscribe": event.subscribe,
        "event.unsubscribe": event.unsubscribe,
        "kernel.info": kernel.info,
        "kernel.get_connection_stats": kernel.get_connection_stats,
        "kernel.flows": kernel.flows,
        "kernel.pending": kernel.pending,
        "kernel.closed": kernel.closed,
        "kernel.drain": kernel.drain,
        "kernel.shutdown_module": kernel.shutdown_module,
    }
    return {name: partial(handler, hub) for name, handler in rows.items()}
