"""Life of a fit request: plan, charge, run in a child process, store, stream.

Must not import wire, ops, admin or process.
"""
