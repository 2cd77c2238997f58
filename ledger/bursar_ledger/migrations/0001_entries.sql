-- The ledger: one table of hash-chained entries, and beside it the bytes that were released.
-- Every column but number, body and hash is computed from the body, so that nothing can disagree with what is hashed.
-- A later version adds files to this folder and never edits one that was shipped: verification compares the schema word by word.

CREATE TABLE entries (
    number INTEGER PRIMARY KEY,
    body TEXT NOT NULL CHECK (typeof(body) = 'text' AND json_valid(body)),
    hash BLOB NOT NULL CHECK (typeof(hash) = 'blob' AND length(hash) = 32),
    kind TEXT NOT NULL GENERATED ALWAYS AS (json_extract(body, '$.kind')) VIRTUAL,
    dataset TEXT NOT NULL GENERATED ALWAYS AS (json_extract(body, '$.dataset')) VIRTUAL,
    actor TEXT NOT NULL GENERATED ALWAYS AS (json_extract(body, '$.actor')) VIRTUAL,
    content_tag TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.content_tag')) VIRTUAL,
    cap_cost_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.cap_cost_units')) VIRTUAL,
    cap_delta_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.cap_delta_units')) VIRTUAL,
    request_id TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.request_id')) VIRTUAL,
    cost_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.cost_units')) VIRTUAL,
    delta_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.delta_units')) VIRTUAL,
    spent_cost_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.spent_cost_units')) VIRTUAL,
    spent_delta_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.spent_delta_units')) VIRTUAL,
    debit INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.debit')) VIRTUAL,
    credential TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.credential')) VIRTUAL,
    token_hash TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.token_hash')) VIRTUAL
);

CREATE UNIQUE INDEX one_genesis ON entries (kind) WHERE kind = 'genesis';
CREATE UNIQUE INDEX one_registration_a_name ON entries (dataset) WHERE kind = 'registration';
CREATE UNIQUE INDEX one_registration_a_content ON entries (content_tag) WHERE kind = 'registration';
CREATE UNIQUE INDEX one_debit_a_request ON entries (actor, request_id) WHERE kind = 'debit';
CREATE UNIQUE INDEX one_release_a_debit ON entries (debit) WHERE kind = 'release';
CREATE UNIQUE INDEX one_credential_a_token ON entries (token_hash) WHERE kind = 'credential_issued';
CREATE INDEX newest_debit_of_a_dataset ON entries (dataset, number) WHERE kind = 'debit';
CREATE INDEX newest_act_on_a_credential ON entries (credential, number) WHERE credential IS NOT NULL;

CREATE TABLE releases (
    debit INTEGER PRIMARY KEY REFERENCES entries (number),
    content BLOB NOT NULL CHECK (typeof(content) = 'blob')
);

-- Numbers have no gaps and each entry names the hash of the one before it. INSERT OR REPLACE deletes rows without a DELETE
-- trigger, but this one comes first and sees only new numbers; the same holds for the other unique columns below.
CREATE TRIGGER entries_continue_the_chain BEFORE INSERT ON entries
BEGIN
    SELECT RAISE(ABORT, 'an entry must have the next number')
    WHERE NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM entries)
        OR json_extract(NEW.body, '$.number') IS NOT NEW.number;
    SELECT RAISE(ABORT, 'an entry must name the hash of the newest entry')
    WHERE json_extract(NEW.body, '$.previous')
        IS NOT coalesce((SELECT lower(hex(hash)) FROM entries ORDER BY number DESC LIMIT 1), printf('%064d', 0));
END;

CREATE TRIGGER entries_happen_once BEFORE INSERT ON entries
BEGIN
    SELECT RAISE(ABORT, 'a ledger begins once')
    WHERE NEW.kind = 'genesis' AND EXISTS (SELECT 1 FROM entries WHERE kind = 'genesis');
    SELECT RAISE(ABORT, 'a dataset is registered once')
    WHERE NEW.kind = 'registration' AND (
        EXISTS (SELECT 1 FROM entries WHERE kind = 'registration' AND dataset = NEW.dataset)
        OR EXISTS (SELECT 1 FROM entries WHERE kind = 'registration' AND content_tag = NEW.content_tag));
    SELECT RAISE(ABORT, 'a request is debited once')
    WHERE NEW.kind = 'debit'
        AND EXISTS (SELECT 1 FROM entries WHERE kind = 'debit' AND actor = NEW.actor AND request_id = NEW.request_id);
    SELECT RAISE(ABORT, 'a debit has one release')
    WHERE NEW.kind = 'release' AND EXISTS (SELECT 1 FROM entries WHERE kind = 'release' AND debit = NEW.debit);
    SELECT RAISE(ABORT, 'a token is issued once')
    WHERE NEW.kind = 'credential_issued'
        AND EXISTS (SELECT 1 FROM entries WHERE kind = 'credential_issued' AND token_hash = NEW.token_hash);
END;

-- The sums are carried from debit to debit, so that admission takes the same time in a long ledger as in a short one.
CREATE TRIGGER debits_stay_within_the_cap BEFORE INSERT ON entries WHEN NEW.kind = 'debit'
BEGIN
    SELECT RAISE(ABORT, 'a debit must cost at least one unit')
    WHERE json_type(NEW.body, '$.details.cost_units') IS NOT 'integer' OR NOT NEW.cost_units >= 1
        OR json_type(NEW.body, '$.details.delta_units') IS NOT 'integer' OR NOT NEW.delta_units >= 0;
    SELECT RAISE(ABORT, 'a debit must add its cost to what was spent')
    WHERE NEW.spent_cost_units IS NOT NEW.cost_units + coalesce(
            (SELECT spent_cost_units FROM entries WHERE kind = 'debit' AND dataset = NEW.dataset ORDER BY number DESC LIMIT 1), 0)
        OR NEW.spent_delta_units IS NOT NEW.delta_units + coalesce(
            (SELECT spent_delta_units FROM entries WHERE kind = 'debit' AND dataset = NEW.dataset ORDER BY number DESC LIMIT 1), 0);
    SELECT RAISE(ABORT, 'a debit must stay within the cap of its dataset')
    WHERE NOT EXISTS (
        SELECT 1 FROM entries AS cap
        WHERE cap.kind = 'registration' AND cap.dataset = NEW.dataset
            AND NEW.spent_cost_units <= cap.cap_cost_units AND NEW.spent_delta_units <= cap.cap_delta_units);
END;

CREATE TRIGGER releases_belong_to_a_debit BEFORE INSERT ON entries WHEN NEW.kind = 'release'
BEGIN
    SELECT RAISE(ABORT, 'a release must belong to a debit')
    WHERE NOT EXISTS (SELECT 1 FROM entries WHERE number = NEW.debit AND kind = 'debit' AND dataset = NEW.dataset);
END;

CREATE TRIGGER content_is_stored_once BEFORE INSERT ON releases
BEGIN
    SELECT RAISE(ABORT, 'released bytes need their entry first')
    WHERE NOT EXISTS (SELECT 1 FROM entries WHERE kind = 'release' AND debit = NEW.debit);
    SELECT RAISE(ABORT, 'released bytes are stored once')
    WHERE EXISTS (SELECT 1 FROM releases WHERE debit = NEW.debit);
END;

CREATE TRIGGER entries_never_change BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'entries never change'); END;
CREATE TRIGGER entries_never_vanish BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'entries never vanish'); END;
CREATE TRIGGER content_never_changes BEFORE UPDATE ON releases
BEGIN SELECT RAISE(ABORT, 'released bytes never change'); END;
CREATE TRIGGER content_never_vanishes BEFORE DELETE ON releases
BEGIN SELECT RAISE(ABORT, 'released bytes never vanish'); END;
CREATE TRIGGER migrations_never_change BEFORE UPDATE ON _sqlite_migrations
BEGIN SELECT RAISE(ABORT, 'the record of migrations never changes'); END;
CREATE TRIGGER migrations_never_vanish BEFORE DELETE ON _sqlite_migrations
BEGIN SELECT RAISE(ABORT, 'the record of migrations never vanishes'); END;
