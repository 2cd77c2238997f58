"""Gateway: JSON over HTTPS for languages without gRPC, in a process of its own.

It holds no state: each call is passed on to a server with the caller's token. It imports no other room but the log, so
neither the ledger nor rows.
"""
