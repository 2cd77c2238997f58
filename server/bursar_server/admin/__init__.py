"""Command `bursar-admin`, for the data owner on the server's own machine; works while the server runs.

Every change is one ledger entry with its actor, time and reason. All changes can be tried with --dry-run, and those
that cannot be undone ask for confirmation.
"""
