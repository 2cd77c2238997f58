"""Questions that auditors ask most, as queries on the tables of `_tables`, and the meaning of tables and columns."""

from __future__ import annotations

from typing import Any

_QUERIES: dict[str, dict[str, str]] = {
    "spend_per_analyst": {
        "title": "Spend per analyst",
        "description": "What each analyst spent of each account. Nominal epsilons are for planning.",
        "sql": """SELECT account, analyst, fits, unreleased, epsilon, percent, epsilon_left, percent_left,
    nominal_epsilon, 100 * allowance AS allowance_percent
FROM analysts ORDER BY account, share DESC, analyst""",
    },
    "refusals_by_analyst": {
        "title": "Refusals",
        "description": "Who asked for what they could not have: the server's word, kept beside the ledger.",
        "sql": """SELECT analyst, dataset, method, refused_by, times, first, last, epsilon_asked, percent_asked,
    epsilon_left, percent_left
FROM refusals ORDER BY last DESC""",
    },
    "releases_of_a_dataset": {
        "title": "Releases of a dataset",
        "description": "What was released of one dataset; of all if the field is empty. A debit leads to its entry.",
        "sql": """SELECT debit, time, dataset, analyst, method, epsilon, percent, bytes, sha256, stored
FROM releases WHERE (:dataset = '' OR dataset = :dataset) ORDER BY debit DESC""",
    },
    "administrative_acts": {
        "title": "Administrative acts",
        "description": "Everything but debits and releases, newest first.",
        "sql": "SELECT entry, time, act, dataset, actor, what FROM acts ORDER BY entry DESC",
    },
    "largest_debits": {
        "title": "Largest debits",
        "description": "By their part of the total that was then in force.",
        "sql": """SELECT entry, time, dataset, actor AS analyst, method, epsilon, percent, released
FROM entries WHERE kind = 'debit' AND (:dataset = '' OR dataset = :dataset) ORDER BY share DESC, entry LIMIT 100""",
    },
    "debits_without_a_release": {
        "title": "Debits without a stored release",
        "description": "Paid for, and nothing stored as released: the fit runs, was interrupted, or failed.",
        "sql": """SELECT entry, time, dataset, actor AS analyst, method, request_id, epsilon, percent
FROM entries WHERE kind = 'debit' AND released IS NOT 1 ORDER BY entry DESC""",
    },
    "entries_not_yet_witnessed": {
        "title": "Entries not yet witnessed",
        "description": "After the newest entry that a signed checkpoint vouches for; all of them where none was given.",
        "sql": """SELECT entry, time, kind, dataset, actor, what
FROM entries WHERE entry > coalesce((SELECT witnessed FROM checks), 0) ORDER BY entry""",
    },
}

_TABLES: dict[str, dict[str, Any]] = {
    "entries": {
        "description": "Every entry; columns as bursar-audit entries has them. A number leads to the whole entry.",
        "sort_desc": "entry",
        "columns": {
            "time": "what the server's clock said; the order is that of the numbers",
            "account": "the budget that the dataset spends",
            "cost_units": "cost in the ledger's own integer units; the guide for auditors has them",
            "rho": "the cost as zCDP's rho of Gaussian noise",
            "share": "the cost as a part of the lifetime budget then in force",
            "epsilon": "the cost as epsilon at delta, by itself",
            "percent": "the cost in percent of the lifetime budget then in force",
            "delta_units": "failure probability, in the ledger's own integer units",
            "released": "1 if a debit has its stored release",
            "head": "hash of the entry",
        },
    },
    "accounts": {"description": "What was promised to the people in the datasets, and what is spent and left of it."},
    "analysts": {"description": "What each analyst spent of each account."},
    "promises": {"description": "Every total that was ever in force.", "sort_desc": "entry"},
    "acts": {"description": "Administrative entries.", "sort_desc": "entry"},
    "releases": {
        "description": "What was sent, and under which debit. stored is 1 if the bytes are in the ledger.",
        "sort_desc": "debit",
    },
    "refusals": {"description": "The server's counts, beside the ledger: nothing proves them."},
    "problems": {"description": "What verification found that is not right; empty if all is well."},
    "checks": {"description": "The verification that these tables belong to."},
}

METADATA: dict[str, Any] = {
    "title": "Privacy ledger",
    "databases": {
        "_internal": {"allow": False},
        "ledger": {
            "title": "Tables and queries",
            "queries": {n: {**q, "hide_sql": True} for n, q in _QUERIES.items()},
            "tables": _TABLES,
        },
    },
}
"""Settings of Datasette. The reader's own SQL is allowed: it reaches these tables only, on a connection that cannot
write, for three seconds, and only the holder of the link may ask, who could read the file."""
