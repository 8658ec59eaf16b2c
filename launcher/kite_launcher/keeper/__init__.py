"""The log keeper: a small process that is the parent of every child, holds its pipes and keeps what it says.

It needs no trio: one loop over epoll, so that it stays small and is the last one to fail. Read in this order:
`loop` (what it waits for), `spawn` (how a child begins), `pipes` and `journal` (how bytes are taken without a
gap or a twin even when the keeper is killed), `store` (files), `reader` (one stream from pipe to file),
`children` (records and ends), `desk` (the launcher's orders), `housekeeping` (its own last duty).

Source: spec 00 §28, §28a; 50 §2.
"""
