"""The SDK of bursar: connect to a server, ask within a privacy budget, get released models."""
