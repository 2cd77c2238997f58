-- The ledger: one table of hash-chained entries, and beside it the bytes that were released.
-- Every column but number, body and hash is computed from the body, so that nothing can disagree with what is hashed.
-- Files of a released version never change, since verification compares the schema word by word: a later version adds a file.

CREATE TABLE entries (
    number INTEGER PRIMARY KEY,
    body TEXT NOT NULL CHECK (typeof(body) = 'text' AND json_valid(body)),
    hash BLOB NOT NULL CHECK (typeof(hash) = 'blob' AND length(hash) = 32),
    kind TEXT NOT NULL GENERATED ALWAYS AS (json_extract(body, '$.kind')) VIRTUAL,
    dataset TEXT NOT NULL GENERATED ALWAYS AS (json_extract(body, '$.dataset')) VIRTUAL,
    actor TEXT NOT NULL GENERATED ALWAYS AS (json_extract(body, '$.actor')) VIRTUAL,
    account TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.account')) VIRTUAL,
    content_tag TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.content_tag')) VIRTUAL,
    destroyed TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.destroyed')) VIRTUAL,
    renyi_order TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.order')) VIRTUAL,
    cap_cost_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.cap_cost_units')) VIRTUAL,
    cap_delta_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.cap_delta_units')) VIRTUAL,
    spent_cost_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.spent_cost_units')) VIRTUAL,
    spent_delta_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.spent_delta_units')) VIRTUAL,
    analyst TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.analyst')) VIRTUAL,
    share TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.share')) VIRTUAL,
    request_id TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.request_id')) VIRTUAL,
    cost_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.cost_units')) VIRTUAL,
    delta_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.delta_units')) VIRTUAL,
    analyst_spent_cost_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.analyst_spent_cost_units')) VIRTUAL,
    analyst_spent_delta_units INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.analyst_spent_delta_units')) VIRTUAL,
    debit INTEGER GENERATED ALWAYS AS (json_extract(body, '$.details.debit')) VIRTUAL,
    credential TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.credential')) VIRTUAL,
    token_hash TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.token_hash')) VIRTUAL
);

CREATE UNIQUE INDEX one_genesis ON entries (kind) WHERE kind = 'genesis';
CREATE UNIQUE INDEX one_registration_a_name ON entries (dataset) WHERE kind = 'registration';
CREATE UNIQUE INDEX one_retirement_a_name ON entries (dataset) WHERE kind = 'retirement';
CREATE UNIQUE INDEX one_destruction_of_each ON entries (dataset, destroyed) WHERE kind = 'destruction';
CREATE UNIQUE INDEX one_debit_a_request ON entries (actor, request_id) WHERE kind = 'debit';
CREATE UNIQUE INDEX one_release_a_debit ON entries (debit) WHERE kind = 'release';
CREATE UNIQUE INDEX one_credential_a_token ON entries (token_hash) WHERE kind = 'credential_issued';
CREATE INDEX contents ON entries (content_tag, number) WHERE content_tag IS NOT NULL;
-- It holds all that a debit asks of a registration, so that no long manifest is read for every debit.
CREATE INDEX account_of_a_dataset ON entries (dataset, account) WHERE kind = 'registration';
CREATE INDEX newest_snapshot_of_a_dataset ON entries (dataset, number) WHERE kind = 'snapshot';
CREATE INDEX newest_state_of_an_account ON entries (account, number) WHERE cap_cost_units IS NOT NULL;
CREATE INDEX newest_budget_of_an_account ON entries (account, number) WHERE kind = 'budget';
CREATE INDEX newest_debit_of_a_dataset ON entries (dataset, number) WHERE kind = 'debit';
CREATE INDEX newest_debit_of_an_analyst ON entries (account, actor, number) WHERE kind = 'debit';
CREATE INDEX newest_allowance ON entries (account, analyst, number) WHERE kind = 'allowance';
CREATE INDEX newest_call_limit ON entries (account, number) WHERE kind = 'call_limit';
CREATE INDEX newest_act_on_a_credential ON entries (credential, number) WHERE credential IS NOT NULL;
CREATE INDEX checkpoint_keys ON entries (number) WHERE kind = 'checkpoint_key';

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
    WHERE NEW.kind = 'registration' AND EXISTS (SELECT 1 FROM entries WHERE kind = 'registration' AND dataset = NEW.dataset);
    SELECT RAISE(ABORT, 'a request is debited once')
    WHERE NEW.kind = 'debit'
        AND EXISTS (SELECT 1 FROM entries WHERE kind = 'debit' AND actor = NEW.actor AND request_id = NEW.request_id);
    SELECT RAISE(ABORT, 'a debit has one release')
    WHERE NEW.kind = 'release' AND EXISTS (SELECT 1 FROM entries WHERE kind = 'release' AND debit = NEW.debit);
    SELECT RAISE(ABORT, 'a token is issued once')
    WHERE NEW.kind = 'credential_issued'
        AND EXISTS (SELECT 1 FROM entries WHERE kind = 'credential_issued' AND token_hash = NEW.token_hash);
END;

-- The newest entry with caps answers for its whole account.
CREATE TRIGGER few_kinds_state_an_account BEFORE INSERT ON entries
    WHEN NEW.cap_cost_units IS NOT NULL OR NEW.spent_cost_units IS NOT NULL OR NEW.spent_delta_units IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'only registrations, totals and debits have caps and sums')
    WHERE NEW.kind NOT IN ('registration', 'budget', 'debit');
    SELECT RAISE(ABORT, 'an account begins with nothing spent')
    WHERE NEW.kind = 'registration' AND (NEW.spent_cost_units IS NOT NULL OR NEW.spent_delta_units IS NOT NULL);
END;

CREATE TRIGGER accounts_are_joined_by_name BEFORE INSERT ON entries WHEN NEW.kind IN ('registration', 'snapshot')
BEGIN
    SELECT RAISE(ABORT, 'an account begins with a registration of its name and a total')
    WHERE NEW.kind = 'registration' AND (NEW.cap_cost_units IS NOT NULL) IS NOT (NEW.account IS NEW.dataset);
    SELECT RAISE(ABORT, 'a dataset joins an account that there is')
    WHERE NEW.account IS NOT NEW.dataset
        AND NOT EXISTS (SELECT 1 FROM entries WHERE kind = 'registration' AND dataset = NEW.account AND account = NEW.account);
END;

CREATE TRIGGER acts_concern_an_account BEFORE INSERT ON entries
    WHEN NEW.kind IN ('budget', 'allowance', 'call_limit', 'retirement', 'snapshot')
BEGIN
    SELECT RAISE(ABORT, 'an act on a dataset must name its account')
    WHERE NEW.account IS NOT (SELECT account FROM entries WHERE kind = 'registration' AND dataset = NEW.dataset);
    SELECT RAISE(ABORT, 'a dataset is retired once, and for good')
    WHERE NEW.kind IN ('retirement', 'snapshot')
        AND EXISTS (SELECT 1 FROM entries WHERE kind = 'retirement' AND dataset = NEW.dataset);
    -- What the debits cost at the new order is arithmetic, which verification does again; that something was spent is not forgotten.
    SELECT RAISE(ABORT, 'a new total keeps what was spent')
    WHERE NEW.kind = 'budget' AND NOT EXISTS (
        SELECT 1 FROM entries AS state
        WHERE state.number = (SELECT max(number) FROM entries WHERE account = NEW.account AND cap_cost_units IS NOT NULL)
            AND NEW.spent_delta_units = coalesce(state.spent_delta_units, 0)
            AND (NEW.spent_cost_units > 0) = (coalesce(state.spent_cost_units, 0) > 0)
            AND NEW.spent_cost_units >= 0 AND NEW.cap_cost_units >= 1 AND NEW.cap_delta_units >= 0);
END;

CREATE TRIGGER destructions_come_last BEFORE INSERT ON entries WHEN NEW.kind = 'destruction'
BEGIN
    SELECT RAISE(ABORT, 'a destruction must name its dataset''s account')
    WHERE NEW.account IS NOT (SELECT account FROM entries WHERE kind = 'registration' AND dataset = NEW.dataset);
    SELECT RAISE(ABORT, 'nothing is destroyed of a dataset that is not retired')
    WHERE NOT EXISTS (SELECT 1 FROM entries WHERE kind = 'retirement' AND dataset = NEW.dataset);
    SELECT RAISE(ABORT, 'the rows are destroyed, and then the key, each once')
    WHERE coalesce(NEW.destroyed NOT IN ('rows', 'key'), 1)
        OR EXISTS (SELECT 1 FROM entries WHERE kind = 'destruction' AND dataset = NEW.dataset AND destroyed = NEW.destroyed)
        OR (NEW.destroyed = 'key') IS NOT (EXISTS (SELECT 1 FROM entries
            WHERE kind = 'destruction' AND dataset = NEW.dataset AND destroyed = 'rows'));
END;

-- The sums are carried from debit to debit, so that admission takes the same time in a long ledger as in a short one.
CREATE TRIGGER debits_stay_within_the_cap BEFORE INSERT ON entries WHEN NEW.kind = 'debit'
BEGIN
    SELECT RAISE(ABORT, 'a debit must cost at least one unit')
    WHERE json_type(NEW.body, '$.details.cost_units') IS NOT 'integer' OR NOT NEW.cost_units >= 1
        OR json_type(NEW.body, '$.details.delta_units') IS NOT 'integer' OR NOT NEW.delta_units >= 0;
    SELECT RAISE(ABORT, 'a debit must name a dataset and its account')
    WHERE NEW.account IS NOT (SELECT account FROM entries WHERE kind = 'registration' AND dataset = NEW.dataset);
    SELECT RAISE(ABORT, 'a retired dataset has no new debits')
    WHERE EXISTS (SELECT 1 FROM entries WHERE kind = 'retirement' AND dataset = NEW.dataset);
    SELECT RAISE(ABORT, 'a debit must add its cost to what was spent')
    WHERE NOT EXISTS (
        SELECT 1 FROM entries AS state
        WHERE state.number = (SELECT max(number) FROM entries WHERE account = NEW.account AND cap_cost_units IS NOT NULL)
            AND NEW.spent_cost_units = NEW.cost_units + coalesce(state.spent_cost_units, 0)
            AND NEW.spent_delta_units = NEW.delta_units + coalesce(state.spent_delta_units, 0));
    SELECT RAISE(ABORT, 'a debit must stay within the cap of its dataset, at the order in force')
    WHERE NOT EXISTS (
        SELECT 1 FROM entries AS state
        WHERE state.number = (SELECT max(number) FROM entries WHERE account = NEW.account AND cap_cost_units IS NOT NULL)
            AND NEW.spent_cost_units <= state.cap_cost_units AND NEW.spent_delta_units <= state.cap_delta_units
            AND NEW.cap_cost_units = state.cap_cost_units AND NEW.cap_delta_units = state.cap_delta_units
            AND NEW.renyi_order = state.renyi_order);
    SELECT RAISE(ABORT, 'a debit must add its cost to what its analyst spent')
    WHERE NEW.analyst_spent_cost_units IS NOT NEW.cost_units + coalesce(
            (SELECT analyst_spent_cost_units FROM entries WHERE kind = 'debit' AND account = NEW.account AND actor = NEW.actor
                AND number > coalesce((SELECT max(number) FROM entries WHERE kind = 'budget' AND account = NEW.account), 0)
                ORDER BY number DESC LIMIT 1),
            (SELECT json_extract(spent.value, '$[0]') FROM entries AS total, json_each(total.body, '$.details.analysts') AS spent
                WHERE total.number = (SELECT max(number) FROM entries WHERE kind = 'budget' AND account = NEW.account)
                    AND spent.key = NEW.actor),
            0)
        OR NEW.analyst_spent_delta_units IS NOT NEW.delta_units + coalesce(
            (SELECT analyst_spent_delta_units FROM entries WHERE kind = 'debit' AND account = NEW.account AND actor = NEW.actor
                AND number > coalesce((SELECT max(number) FROM entries WHERE kind = 'budget' AND account = NEW.account), 0)
                ORDER BY number DESC LIMIT 1),
            (SELECT json_extract(spent.value, '$[1]') FROM entries AS total, json_each(total.body, '$.details.analysts') AS spent
                WHERE total.number = (SELECT max(number) FROM entries WHERE kind = 'budget' AND account = NEW.account)
                    AND spent.key = NEW.actor),
            0);
    SELECT RAISE(ABORT, 'a debit must stay within its analyst''s allowance and the most that one call may cost')
    WHERE NEW.analyst_spent_cost_units > json_extract(NEW.body, '$.details.allowance_cost_units')
        OR NEW.analyst_spent_delta_units > json_extract(NEW.body, '$.details.allowance_delta_units')
        OR NEW.cost_units > json_extract(NEW.body, '$.details.call_cost_units')
        OR NEW.delta_units > json_extract(NEW.body, '$.details.call_delta_units');
    SELECT RAISE(ABORT, 'a debit must hold the limits in force')
    WHERE (json_extract(NEW.body, '$.details.call_cost_units') IS NULL) IS NOT coalesce(
            (SELECT share IS NULL FROM entries WHERE kind = 'call_limit' AND account = NEW.account ORDER BY number DESC LIMIT 1), 1)
        OR (json_extract(NEW.body, '$.details.allowance_cost_units') IS NULL) IS NOT (
            coalesce((SELECT share IS NULL FROM entries
                WHERE kind = 'allowance' AND account = NEW.account AND analyst = NEW.actor ORDER BY number DESC LIMIT 1), 1)
            AND coalesce((SELECT share IS NULL FROM entries
                WHERE kind = 'allowance' AND account = NEW.account AND analyst = '*' ORDER BY number DESC LIMIT 1), 1))
        OR (json_extract(NEW.body, '$.details.call_cost_units') IS NULL)
            IS NOT (json_extract(NEW.body, '$.details.call_delta_units') IS NULL)
        OR (json_extract(NEW.body, '$.details.allowance_cost_units') IS NULL)
            IS NOT (json_extract(NEW.body, '$.details.allowance_delta_units') IS NULL);
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
