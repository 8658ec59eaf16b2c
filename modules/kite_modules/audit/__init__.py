"""The audit trail: who asked for what, and every alarm, in a chain of rows that shows each later change."""
