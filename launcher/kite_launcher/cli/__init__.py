"""The commands of `kite-launch`: small, blocking, quick to start.

They talk to a living launcher over its Unix socket and never import the supervisor, so that `status` answers at once
and still answers when everything else is broken. `main` chooses the command, this package does it.
"""
