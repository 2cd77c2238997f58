"""The whole path once, for real: a table of people, a server, an analyst, an auditor. Run by `python -m demo`."""
