"""Gateway: JSON over HTTPS for languages without gRPC, in a process of its own.

It keeps counts of calls without a valid token and no other state: each call is passed on to a server with the caller's
token. It imports the log and the throttle and no other room, so neither the ledger nor rows.
"""
