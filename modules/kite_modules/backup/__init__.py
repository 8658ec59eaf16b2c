"""Snapshots of an instance's state: taken while it runs, proven by restoring them, put back when it does not run."""
