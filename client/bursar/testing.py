"""Recorded answers, and a real server on synthetic rows, for tests of programs that use this package.

`recorded` and `record` need this package alone. `serve` needs `bursar[server]`. This module imports no server.

    with bursar.testing.serve(schema) as server, server.client() as client:
        model = client.dataset("people").fit(bursar.DPEM(n_components=2), spend=bursar.rho(0.1))
"""

from bursar._recorded import Exchange, NotRecordedError, Recording, record, recorded
from bursar._served import Server, serve

__all__ = ["Exchange", "NotRecordedError", "Recording", "Server", "record", "recorded", "serve"]
