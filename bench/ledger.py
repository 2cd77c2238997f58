"""The ledger measured: `python bench/ledger.py [rate] [flat] [verify]`; tables, and bench/results/ledger.json.

rate: durable debits a second from 8 concurrent clients, against the bare limit of this disk: as many one-row SQLite
transactions, each flushed to the disk, by one writer in the same folder; in turns.
flat: time of one admission in ledgers of 1e3 to 1e6 entries, in turns.
verify: checking and pricing again a ledger of 1e6 entries, opening it, and a server's start by its newest checkpoint.

Every debit has three Gaussian events of its own sizes, so that no price is found in a cache.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import sqlite3
import statistics
import tempfile
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from _common import Json, results_of, spread_of
from tqdm import tqdm

from bursar_ledger import Adjacency, Budget, DebitRequest, GaussianEvent, Ledger, Registration, Witness, verify

CLIENTS = 8
ROUNDS = 7
DEBITS = 2000
SIZES = (10**3, 10**4, 10**5, 10**6)


def request(number: int, client: int = 0) -> DebitRequest:
    """A request like a fit's, with a price of its own."""
    return DebitRequest(
        dataset="people",
        principal=f"analyst-{client}",
        request_id=f"request-{number}",
        request_hash=hashlib.sha256(str(number).encode()).digest(),
        method="FitDPEM",
        events=tuple(GaussianEvent(2**40 + 7 * number + i, Fraction(10**12 + i, 3), 3) for i in range(3)),
        parameters={"columns": ["age", "visits"], "n_components": 5, "spend": {"rho": 0.001}},
    )


def new_ledger(path: Path) -> Ledger:
    """A ledger with one dataset that has room for everything here."""
    ledger = Ledger.create(path, actor="owner")
    registration = Registration("people", Adjacency.REPLACE_ONE, Budget(1e5, 1e-6), bytes(32), {"columns": []})
    ledger.register_dataset(registration, actor="owner", reason="benchmark")
    return ledger


def bare_rate(folder: Path, row: str, count: int) -> float:
    """One-row transactions a second that are flushed to the disk one by one: WAL, synchronous=FULL, no index."""
    path = folder / "bare.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, body TEXT)")
        start = time.perf_counter()
        for _ in range(count):
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO entries (body) VALUES (?)", [row])
            db.execute("COMMIT")
        return count / (time.perf_counter() - start)


def debit_rate(ledger: Ledger, first: int, count: int, clients: int) -> float:
    """Debits a second from `clients` threads on one open ledger, requests made beforehand."""
    each = count // clients
    work = [[request(first + client * each + i, client) for i in range(each)] for client in range(clients)]
    begin = threading.Barrier(clients + 1)

    def run(requests: list[DebitRequest]) -> None:
        begin.wait()
        for one in requests:
            ledger.debit(one)

    threads = [threading.Thread(target=run, args=(requests,)) for requests in work]
    for thread in threads:
        thread.start()
    begin.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return each * clients / (time.perf_counter() - start)


def rate(folder: Path) -> dict[str, Any]:
    """Rates in turns, and their ratios."""
    rounds = []
    with new_ledger(folder / "rate.sqlite") as ledger:
        row = next(ledger.entries(first=ledger.debit(request(0)).entry)).body.decode()
        for i in range(ROUNDS):
            bare = bare_rate(folder, row, DEBITS)
            many = debit_rate(ledger, 10**6 * (2 * i + 1), DEBITS, CLIENTS)
            one = debit_rate(ledger, 10**6 * (2 * i + 2), DEBITS // 4, 1)
            rounds.append({"bare": bare, "clients_8": many, "clients_1": one, "ratio": many / bare})
    print(f"\nDurable debits a second, {ROUNDS} rounds in turns, {DEBITS} each; a row has {len(row)} bytes")
    print(f"{'round':>6} {'bare':>9} {'8 clients':>10} {'1 client':>9} {'8 clients / bare':>17}")
    for i, found in enumerate(rounds, 1):
        rates = f"{found['bare']:>9.0f} {found['clients_8']:>10.0f} {found['clients_1']:>9.0f}"
        print(f"{i:>6} {rates} {found['ratio']:>17.2f}")
    ratios = sorted(found["ratio"] for found in rounds)
    print(
        f"ratio: median {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); at least 0.5 is wanted"
    )
    ratio: Json = {"ratio_median": statistics.median(ratios), "ratio_spread": spread_of(ratios)}
    return ratio | {"rounds": rounds, "row_bytes": len(row)}


def long_ledger(folder: Path, entries: int) -> Path:
    """A file with so many entries, debits and releases by turns; not flushed while it is made."""
    path = folder / f"ledger-{entries}.sqlite"
    with new_ledger(path) as ledger:
        ledger._store.db.execute("PRAGMA synchronous=OFF")
        ledger._store._mark.flush = lambda: None  # type: ignore[method-assign]
        for i in tqdm(
            range((entries - 2) // 2), desc=f"a ledger of {entries:,} entries", unit="fits", leave=False, disable=None
        ):
            ledger.store_release(ledger.debit(request(i, i % CLIENTS)).entry, b"release %d" % i)
    return path


def flat(paths: dict[int, Path], each: int = 200) -> dict[str, Any]:
    """Median time of an admission by length of the ledger, in microseconds, in turns."""
    times: dict[int, list[float]] = {size: [] for size in paths}
    with contextlib.ExitStack() as stack:
        ledgers = {size: stack.enter_context(Ledger.open(path)) for size, path in paths.items()}
        for i in range(each):
            for size, ledger in ledgers.items():
                asked = request(10**9 + i)
                start = time.perf_counter()
                ledger.debit(asked)
                times[size].append(1e6 * (time.perf_counter() - start))
    medians = {size: statistics.median(found) for size, found in times.items()}
    print(f"\nOne admission, median of {each} in turns")
    print(f"{'entries':>9} {'us':>7} {'to the first':>13}")
    for size, median in medians.items():
        print(f"{size:>9} {median:>7.0f} {median / medians[min(medians)]:>13.2f}")
    return {"microseconds": medians}


def verified(path: Path) -> dict[str, Any]:
    """Seconds of a whole verification, every price computed again, and of opening."""
    processes = os.cpu_count() or 1
    start = time.perf_counter()
    found = verify(path, processes=processes)
    seconds = time.perf_counter() - start
    if not found.ok:
        raise SystemExit("\n".join(found.problems))
    start = time.perf_counter()
    Ledger.open(path, processes=processes).close()
    opened = time.perf_counter() - start
    start = time.perf_counter()
    witness = Witness(found.entries, found.head)
    with Ledger.open(path, reprice=True, processes=processes, witness=witness) as ledger:
        started = time.perf_counter() - start
        if ledger.whole:
            raise SystemExit("the ledger was verified as a whole: it is too short for this")
    size = path.stat().st_size
    print(f"\nVerification of {found.entries:,} entries ({size / 1e6:.0f} MB), {processes} processes: {seconds:.1f} s,")
    print(f"{1e6 * seconds / found.entries:.0f} us an entry; opening (no prices): {opened:.1f} s;")
    print(f"what a server waits for before it serves, by a signed checkpoint: {started:.1f} s")
    times = {"seconds": seconds, "open_seconds": opened, "start_seconds": started}
    return {"entries": found.entries, "bytes": size, **times, "processes": processes}


def main() -> None:
    """Runs what was asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["rate", "flat", "verify"], help="left out: all")
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured; left out: a temporary one")
    parser.add_argument("--json", type=Path, default=results_of(__file__))
    parser.add_argument("--largest", type=int, default=max(SIZES), help="entries of the longest ledger")
    options = parser.parse_args()
    parts = options.parts
    output = options.json
    results: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if "rate" in parts:
            results["rate"] = rate(folder)
        sizes = [size for size in SIZES if size <= options.largest]
        if "flat" in parts:
            paths = {size: long_ledger(folder, size) for size in sizes}
            results["flat"] = flat(paths)
        if "verify" in parts:
            longest = folder / f"ledger-{sizes[-1]}.sqlite"
            results["verify"] = verified(longest if longest.exists() else long_ledger(folder, sizes[-1]))
    results["machine"] = {"cpus": os.cpu_count(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
