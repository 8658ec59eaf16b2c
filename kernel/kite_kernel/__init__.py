"""The hub: one trio nursery that routes calls, events and streams between modules and decides who is alive."""
