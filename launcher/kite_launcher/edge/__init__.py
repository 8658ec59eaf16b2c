"""Processes, sockets and files of the launcher."""
