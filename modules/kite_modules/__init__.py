"""What runs on Kite: the SDK, the kite command, the stock modules."""
