"""Pure decisions of the launcher."""
