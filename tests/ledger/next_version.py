"""The next version's migration: an example that nobody needs, as it would lie in `migrations/0002_methods.sql`."""

from __future__ import annotations

NAME = "0002_methods"
SQL = """
-- A column is computed from the body, so that it says nothing that is not hashed.
ALTER TABLE entries ADD COLUMN method TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.method')) VIRTUAL;
CREATE INDEX debits_by_method ON entries (method, number) WHERE kind = 'debit';
CREATE TRIGGER debits_have_a_method BEFORE INSERT ON entries WHEN NEW.kind = 'debit'
BEGIN SELECT RAISE(ABORT, 'a debit must name its method') WHERE NEW.method IS NULL; END;
"""
