"""Recognises a table that was registered before, under whatever name and in whatever order of rows."""

from __future__ import annotations

import hmac

import numpy as np

from bursar_server.tables._hashing import row_digests
from bursar_server.tables._keys import Keys
from bursar_server.tables._snapshot import Snapshot

_BITS = 256
_LIMB = 32


def content_tag(snapshot: Snapshot, keys: Keys) -> str:
    """A keyed hash of the multiset of present rows, 64 hexadecimal digits.

    The sum of keyed hashes of the rows modulo 2^256, hashed with the key once more (MSet-Add-Hash: Clarke, Devadas,
    van Dijk, Gassend, Suh 2003). Without the key it says nothing about the rows, but that two tables with one tag are
    equal. Null rows hold nobody's data, so that broken lines and padding do not make a table look new. Columns count
    in the order of their names.

    It catches mistakes, not evasion: other bounds, columns, a cap or one row more give another tag.
    """
    key = keys.derive("content tag: row")
    names = [column.name for column in snapshot.manifest.columns]
    order = sorted(range(len(names)), key=names.__getitem__)
    total = rows = 0
    for block in snapshot.blocks():
        digests = row_digests([block.values[j][block.present] for j in order], key, _BITS // 8)
        # As 32-bit limbs, column sums of a batch stay far below 2^64; Python's integers then carry.
        limbs = digests.view("<u4").sum(axis=0, dtype=np.uint64)
        total += sum(int(limb) << (_LIMB * i) for i, limb in enumerate(limbs))
        rows += len(digests)
    message = (total % 2**_BITS).to_bytes(_BITS // 8, "big") + rows.to_bytes(8, "big")
    return hmac.digest(keys.derive("content tag"), message, "sha256").hex()
