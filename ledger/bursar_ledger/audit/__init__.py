"""`bursar-audit`: what an auditor needs, from the ledger file alone. Never the server, never the data."""
