"""The watchdog's wire and processes."""
