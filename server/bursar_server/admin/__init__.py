"""`bursar-admin`: what the data's owner does on the server's own machine. Works while the server runs.

Every act is one entry of the ledger, with who did it, when and why. All of them can be tried with --dry-run, and those
that cannot be undone ask first.
"""
