"""Looks for known vulnerabilities of exactly the versions that are locked, and keeps a record of the last time.

    .venv/bin/python deploy/vulnerabilities.py [--record]

pip-audit asks the package index about each locked version. Exit status 1: something was found that `ACCEPTED` does not
have with a reason. Exit status 0: nothing was found, today; or on the day of the record, which is of exactly this lock
file, without a finding and not too old, where the index cannot be asked today. Exit status 3: nobody could be asked and
there is no such record, so nothing is known. That is no pass: .ci/run goes on and says so at its end, and no image is
to be published on it. `--record` writes `vulnerabilities.json`, to be committed, once all was asked.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from deploy.lock import read  # noqa: E402

DEPLOY = Path(__file__).resolve().parent
LOCK = DEPLOY / "requirements.lock"
RECORD = DEPLOY / "vulnerabilities.json"

ACCEPTED: Mapping[str, str] = {}
"""Advisories that do not concern the server, and why. An entry goes when the version is raised."""
MOST_DAYS = 60
"""Age of a record that may stand for today where the index cannot be reached."""

Answer = dict[str, list[str] | None]
"""Advisories by package and version, for each package of a lock; None where the index could not be asked."""


@dataclass(frozen=True)
class Verdict:
    """Knowledge of a lock.

    Attributes:
        status: 0 for good, 1 for bad, 3 for not known.
        text: one line that says what it rests on.
        record: to be kept; None if not all was asked.
    """

    status: int
    text: str
    record: dict[str, Any] | None = None


def ask(path: Path) -> Answer:
    """Asks the index by pip-audit, which takes the lock as it is and installs nothing."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(path), "--require-hashes", "--disable-pip"]
    done = subprocess.run(
        [*command, "--format", "json", "--progress-spinner", "off", "--timeout", "30"],
        capture_output=True,
        text=True,
        check=False,
    )
    # It has no status of its own for an index that is not there; without an answer nothing is known.
    answer: Answer = dict.fromkeys(f"{name}=={version}" for name, (version, _) in read(path.read_text()).items())
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        return answer
    asked = (one for one in found if "skip_reason" not in one)
    return answer | {f"{one['name']}=={one['version']}": sorted(each["id"] for each in one["vulns"]) for one in asked}


def judge(lock: bytes, record: Mapping[str, Any] | None, answer: Answer, today: str) -> Verdict:
    """Return what an answer, or the record of an earlier one, says of a lock.

    Args:
        lock: content of the lock file.
        record: of the last time; None if there is none.
        answer: of the index.
        today: as YYYY-MM-DD.
    """
    digest, unknown = hashlib.sha256(lock).hexdigest(), sum(ids is None for ids in answer.values())
    found = {package: ids for package, ids in sorted(answer.items()) if ids}
    if (bad := _told(found)) or not unknown:
        new = {"asked": today, "lock_sha256": digest, "packages": len(answer), "found": found}
        about = f"asked about {len(answer) - unknown} of {len(answer)} packages"
        return Verdict(1 if bad else 0, f"{about}: {bad or _NOTHING}", None if unknown else new)
    missing = f"NOT ASKED about {unknown} of {len(answer)} packages, the index does not answer"
    if record is None or record["lock_sha256"] != digest:
        return Verdict(3, f"{missing}; and there is no record of an earlier answer about this lock")
    age = (datetime.date.fromisoformat(today) - datetime.date.fromisoformat(record["asked"])).days
    if not 0 <= age <= MOST_DAYS:
        return Verdict(3, f"{missing}; and the earlier answer is {age} days old, expected {MOST_DAYS} at most")
    bad = _told(record["found"])
    return Verdict(1 if bad else 0, f"{missing}; on {record['asked']}: {bad or _NOTHING}")


def _told(found: Mapping[str, list[str]]) -> str:
    bad = {package: left for package, ids in found.items() if (left := [i for i in ids if i not in ACCEPTED])}
    return "; ".join(f"{package}: {', '.join(ids)}" for package, ids in bad.items())


_NOTHING = "no known vulnerability that concerns the server"


def main(asked: Callable[[Path], Answer] = ask, *, keep: bool = False) -> int:
    """Asks and says; the exit status is above."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else None
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    verdict = judge(LOCK.read_bytes(), record, asked(LOCK), today)
    if keep and verdict.record is not None:
        RECORD.write_text(json.dumps(verdict.record, indent=1) + "\n", encoding="utf-8")
    print(f"vulnerabilities: {verdict.text}")  # noqa: T201
    return verdict.status


if __name__ == "__main__":
    raise SystemExit(main(keep="--record" in sys.argv[1:]))
