-- Destructions: that the rows of a retired dataset are gone, and then the key without which its tag says nothing.

ALTER TABLE entries ADD COLUMN destroyed TEXT GENERATED ALWAYS AS (json_extract(body, '$.details.destroyed')) VIRTUAL;
CREATE UNIQUE INDEX one_destruction_of_each ON entries (dataset, destroyed) WHERE kind = 'destruction';

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
