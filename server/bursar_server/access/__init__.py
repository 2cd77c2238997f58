"""Access control: tokens and roles, identity providers, TLS, and limits on the rate of calls."""
