"""The stock module `logs`: what the log keeper keeps, for whoever speaks the wire."""
