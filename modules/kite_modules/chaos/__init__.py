"""Fault injection for a running instance: what is hurt is planned by a seed, what must hold is judged at the end."""
