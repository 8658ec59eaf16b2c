"""The kite command."""
