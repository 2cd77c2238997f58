"""The gRPC services: from messages to the ledger and the vault, and back. The interceptor stands before them."""
