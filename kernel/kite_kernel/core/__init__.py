"""Pure decisions of the hub: values in, values out; no clock, no chance, no I/O."""
