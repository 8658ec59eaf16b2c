"""Where the hub meets sockets, timers and files."""
