"""The watchdog: asks modules for their health and brings a lost launcher back."""
