"""Fields through the SDK from the real server: categories, bins, people with several rows, chosen trees, reuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bursar
from bursar_ledger import Ledger, verify

if TYPE_CHECKING:
    from tests.e2e.conftest import Home, Server

MANIFEST = """
name = "trips"
adjacency = "add_remove_one"
public_rows = 1200
[unit]
column = "who"
max_rows = 3
[[columns]]
name = "from"
kind = "categorical"
categories = ["north", "south"]
[[columns]]
name = "km"
kind = "numeric"
lower = 0.0
upper = 30.0
bins = [0.0, 10.0, 20.0, 30.0]
[[columns]]
name = "to"
kind = "categorical"
categories = ["north", "south"]
"""

PEOPLE = 600


def _trips(home: Home) -> None:
    """600 people, those who stay in the north with three rows each, the others with one."""
    folder = home.state.path.parent
    north = [f"{who},north,{5 + who % 20},north" for who in range(PEOPLE // 2) for _ in range(3)]
    south = [f"{who},south,25,{('north', 'south')[who % 2]}" for who in range(PEOPLE // 2, PEOPLE)]
    (folder / "rows.csv").write_text("\n".join(["who,from,km,to", *north, *south, "9999,nowhere,1,north"]))
    (folder / "table.toml").write_text(MANIFEST)
    budget = ("--epsilon", "20", "--delta", "1e-6", "--i-know")
    home.admin("import", "--manifest", folder / "table.toml", "--csv", folder / "rows.csv", *budget)


@pytest.mark.slow
def test_fields_are_previewed_paid_reused_and_verified(shared: Server) -> None:
    """The debit is the previewed one; people count once; tables of earlier releases are free."""
    home = shared.home
    _trips(home)
    with bursar.connect(shared.address, token=home.tokens["analyst"], ca=home.state.tls / "ca.pem") as client:
        trips = client.dataset("trips")
        pairs = [("from", "to"), ("from", "km")]
        preview = trips.preview(bursar.MRF(cliques=pairs), spend=bursar.rho(0.5))
        model = trips.fit(bursar.MRF(cliques=pairs), spend=bursar.rho(0.5), progress=False)
        assert model.receipt is not None
        assert preview.price == model.receipt.price
        assert model.columns == ("from", "km", "to")
        assert model.n_rows == pytest.approx(PEOPLE, abs=40)
        assert model.marginal("from") == pytest.approx([0.5, 0.5], abs=0.05)
        assert model.conditional("to", {"from": "south"}) == pytest.approx([0.5, 0.5], abs=0.1)
        assert model.conditional("km", {"from": "south"})[2] > 0.95
        fetched = client.model(model.receipt.entry)
        assert isinstance(fetched, bursar.MarkovRandomField)
        assert fetched.receipt == model.receipt
        assert {**fetched.to_dict(), "receipt": None} == {**model.to_dict(), "receipt": None}
        there = trips.fit(bursar.MRF(cliques=pairs, reuse=[model], estimated_by="server"), progress=False)
        assert {**there.to_dict(), "receipt": None} == {**model.to_dict(), "receipt": None}
        left = trips.remaining()
        naive = trips.fit(bursar.MRF(cliques=pairs, reuse=[model], estimator="naive"), progress=False)
        assert naive.receipt is not None
        assert naive.receipt.free
        assert [table.entry for table in naive.tables_] == [model.receipt.entry] * 2
        assert trips.remaining() == left
        tree = trips.fit(bursar.MRF(cliques="tree"), spend=bursar.pure(4.0), progress=False)
        assert {frozenset(clique) for clique in tree.cliques_} >= {frozenset(("from", "km"))}
        chain = trips.fit(bursar.MRF(cliques=bursar.Chain(["from", "to"])), spend=bursar.rho(0.5), progress=False)
        assert chain.conditional("to", {"from": "north"})[0] > 0.9
        with pytest.raises(bursar.InvalidRequestError, match="no column of this name that has states"):
            trips.fit(bursar.MRF(cliques=[("from", "who")]), spend=bursar.rho(0.5))
    with Ledger.open(home.state.ledger) as ledger:
        assert [one.dataset for one in ledger.releases()].count("trips") == 3
    assert verify(home.state.ledger).ok
